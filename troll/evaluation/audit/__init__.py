"""The audit of the graders: reference answers, paraphrases, wrong answers, hostile programs, speed."""

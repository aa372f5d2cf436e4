// Headings of sortable tables become buttons: pressing one sorts the rows by its column, pressing it again reverses them.
(() => {
  const number = (cell) => (cell.dataset.sort ? Number(cell.dataset.sort) : NaN);
  const text = (cell) => (cell.dataset.sort ?? cell.textContent).trim();

  function sort(table, heading, column) {
    const numeric = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numeric; // numbers are first sorted in descending order
    const value = (row) => (numeric ? number(row.cells[column]) : text(row.cells[column]));
    const missing = (found) => (numeric ? Number.isNaN(found) : found === "");
    const compare = (a, b) => (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b); // missing values are last in both orders
      return descending ? compare(b, a) : compare(a, b);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function prepare() {
    for (const table of document.querySelectorAll("table.sortable")) {
      [...table.tHead.rows[0].cells].forEach((heading, column) => {
        const button = document.createElement("button");
        button.type = "button";
        button.title = "Sort by this column";
        button.append(...heading.childNodes);
        button.addEventListener("click", () => sort(table, heading, column));
        heading.append(button);
      });
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", prepare);
  else prepare();
})();

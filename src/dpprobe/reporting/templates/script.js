"use strict";
// Tables that sort and keep a column in sight, a filter for long ones, statements that open when a link leads to them.
const number = (text) => {
  if (text.trim() === "∞" || text.trim() === "inf") return Infinity;
  const found = text.replace(/,/g, "").match(/^\s*(<|>=?)?([-−]?\d+(\.\d+)?(e[-+]?\d+)?)/i);
  return found ? Number(found[2].replace("−", "-")) - (found[1] === "<" ? 1e-9 : 0) : NaN; // <18 before 18-39
};
const compare = (a, b) => {
  if (!a !== !b) return a ? -1 : 1; // blank cells last, whichever way
  const [x, y] = [number(a), number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
};
const sort = (table, column, button) => {
  const head = button.parentElement;
  const falling = head.getAttribute("aria-sort") === "ascending" ||
    (head.getAttribute("aria-sort") === null && head.classList.contains("num"));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [row.cells[column]?.textContent.trim() ?? "", row]);
  keyed.sort(([a], [b]) => (falling && a && b ? compare(b, a) : compare(a, b)));
  body.append(...keyed.map(([, row]) => row));
};
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.classList.contains("plain")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.title = "Sort by this column";
    button.addEventListener("click", () => sort(table, column, button));
    head.append(button);
  });
}
// The column that stays while a table scrolls: the first in which rows differ, such as ε where there is one dataset.
for (const { tBodies: [body], tHead: head } of document.querySelectorAll(".scroll > table")) {
  const rows = [...body.rows].filter((row) => row.cells.length === head.rows[0].cells.length);
  const texts = (column) => new Set(rows.map((row) => row.cells[column].textContent.trim()));
  const pinned = Math.max(0, [...head.rows[0].cells].findIndex((_, column) => texts(column).size > 1));
  for (const row of [head.rows[0], ...rows]) row.cells[pinned]?.classList.add("pin");
}
for (const input of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
  const status = input.closest("p").querySelector("[role=status]");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const own = row.dataset.text.toLowerCase().split(" ");
      row.hidden = !words.every((word) =>
        /^ε=|^(not-)?private$/.test(word)
          ? own.includes(word)
          : own.some((text) => text.includes(word)));
      count += !row.hidden;
    }
    status.textContent = words.length ? `${count} of ${rows.length}` : "";
  });
}
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", reveal);
reveal();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const item of opened) item.open = true;
});
addEventListener("afterprint", () => { for (const item of opened) item.open = false; });

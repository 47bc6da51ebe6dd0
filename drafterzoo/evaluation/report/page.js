"use strict";

// Sort a table by a column: first the way that is most often wanted (numbers falling, words rising), then the other.
function sortBy(head) {
  const table = head.closest("table");
  const column = [...head.parentElement.children].indexOf(head);
  const usual = head.classList.contains("words") ? "ascending" : "descending";
  const other = usual === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === usual ? other : usual;
  for (const row of table.querySelectorAll("tr.group")) row.classList.remove("group");  // groups hold in one order only
  for (const each of table.querySelectorAll("thead th")) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ row, place, value: row.cells[column].dataset.sort }));
  const numbers = rows.every(({ value }) => value === undefined || value === "" || !Number.isNaN(Number(value)));
  const sign = order === "ascending" ? 1 : -1;
  rows.sort((a, b) => {
    const [unknownA, unknownB] = [a.value === undefined, b.value === undefined];
    if (unknownA || unknownB) return unknownA - unknownB || a.place - b.place;
    const difference = numbers ? Number(a.value) - Number(b.value) : a.value.localeCompare(b.value);
    return sign * difference || a.place - b.place;
  });
  body.append(...rows.map(({ row }) => row));
}

const split = (cell) => JSON.parse(cell.dataset.csv);
const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csv(table) {
  const lines = [...table.rows].map((row) => [...row.cells].flatMap(split).map(quoted).join(","));
  return lines.join("\n") + "\n";
}

function markdown(table) {
  const text = (cell) => cell.innerText.trim().replaceAll("|", "\\|").replaceAll("\n", " ");
  const lines = [...table.rows].map((row) => `| ${[...row.cells].map(text).join(" | ")} |`);
  const rule = [...table.rows[0].cells].map((cell) => (cell.classList.contains("words") ? "---" : "---:"));
  lines.splice(1, 0, `| ${rule.join(" | ")} |`);
  return lines.join("\n") + "\n";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or a page that is not thought secure: the old way
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const bar = button.closest(".bar");
    const table = document.getElementById(bar.dataset.table);
    await copy(button.dataset.copy === "csv" ? csv(table) : markdown(table));
    button.focus();
    const told = bar.querySelector(".told");
    told.textContent = "Copied.";
    setTimeout(() => { told.textContent = ""; }, 2500);
  });
}

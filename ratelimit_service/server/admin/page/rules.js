// The rules and what they have answered: sorted, searched, added up. A click on one shows more of it.

import {COLUMNS, NUMBERS} from "./columns.js";
import {arrange, at, button, make, rate, setText, whole} from "./dom.js";
import {openRule} from "./rule.js";

const MORE = 100, FIRST_NUMBER = COLUMNS.indexOf(NUMBERS[0]);
const collator = new Intl.Collator("en", {numeric: true});
const [heads, body, foot, filter, order, more] = ["heads", "rows", "sums", "filter", "order", "more"].map(at);
let all = [], most = MORE, rows = new Map(), sorting = {column: NUMBERS[0], down: true};

function sortBy(column, down) {
  sorting = {column, down};
  markHeads();
  showRules();
}

function markHeads() {
  for (const [index, head] of [...heads.children].entries()) {
    if (COLUMNS[index] !== sorting.column) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  }
  order.selectedIndex = COLUMNS.indexOf(sorting.column);
}

function makeHead(column) {
  const name = button(column.head, () => sortBy(column, sorting.column === column ? !sorting.down : Boolean(column.words)));
  const head = make("th", column.words ? "number" : "", name);
  name.title = column.meaning || "";
  head.scope = "col";
  return head;
}

// Rules that are equal: the most hits first, then as in the files.
function sorted(found) {
  const {column, down} = sorting, sign = down ? -1 : 1, compare = column.words ? (one, other) => one - other : collator.compare;
  return found.map((rule, index) => [column.value(rule), rule, index])
    .sort((one, other) => sign * compare(one[0], other[0]) || other[1].total - one[1].total || one[2] - other[2]).map(each => each[1]);
}

function numberCell(column) {
  return make("td", "number", document.createTextNode(""), ...(column.bar ? [make("div", column.bar, make("i", ""))] : []));
}

function makeRow(rule) {
  const row = make("tr", "", ...COLUMNS.map(column => column.cell ? column.cell(rule) : numberCell(column)));
  for (const [index, cell] of [...row.cells].entries()) cell.dataset.head = COLUMNS[index].head;
  row.addEventListener("click", () => { if (getSelection().isCollapsed) openRule(rule); });
  return row;
}

// Rows stay and are filled anew, so that what has the focus keeps it, and thousands of cells are not made each time.
function fill(row, rule, highest) {
  for (const [index, column] of COLUMNS.entries()) {
    if (!column.words) continue;
    const cell = row.cells[index], number = column.value(rule), words = column.words(rule);
    if (column.bar) cell.lastChild.firstChild.style.width = `${highest ? 100 * number / highest : 0}%`;
    if (cell.firstChild.data === words) continue;
    cell.firstChild.data = words;
    cell.className = `number ${column.colour(rule, number)}${number ? "" : " zero"}`;
  }
}

function showSums(found) {
  const sums = NUMBERS.map(column => {
    const sum = found.reduce((total, rule) => total + column.value(rule), 0);
    return make("td", "number", column.bar ? rate(sum) : whole(sum));
  });
  const title = make("th", "", found.length === 1 ? "1 rule" : `${whole(found.length)} rules together`);
  title.colSpan = FIRST_NUMBER;
  title.scope = "row";
  foot.replaceChildren(title, ...sums, make("td", ""));
  NUMBERS.forEach((column, index) => { sums[index].dataset.head = column.head; });
}

function showRules() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sorted(all.filter(rule => words.every(word => rule.text.includes(word)))), first = found.slice(0, most);
  const highest = Math.max(0, ...first.map(rule => rule.rates.hits || 0));
  rows = new Map(first.map(rule => [rule, rows.get(rule) || makeRow(rule)]));
  for (const [rule, row] of rows) fill(row, rule, highest);
  arrange(body, [...rows.values()]);
  showSums(found);
  setText(at("count"), found.length > first.length ? `the first ${whole(first.length)} of ${whole(found.length)}`
    : words.length ? `${whole(found.length)} of ${whole(all.length)}` : "");
  more.hidden = found.length <= first.length;
}

export function show(status) {
  all = status.rules;
  showRules();
}

heads.append(...COLUMNS.map(makeHead));
order.append(...COLUMNS.map(column => make("option", "", column.head)));
order.addEventListener("change", () => {
  const column = COLUMNS[order.selectedIndex];
  sortBy(column, Boolean(column.words));
});
filter.addEventListener("input", showRules);
more.addEventListener("click", () => { most += MORE; showRules(); });
markHeads();

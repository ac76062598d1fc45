// The rules and what they have answered: sorted, searched, added up. A click on one shows more of it.

import {columnsOf} from "./columns.js";
import {arrange, at, button, make, setText, whole} from "./dom.js";
import {openRule} from "./rule.js";

const MORE = 100, FEW = 10, narrow = matchMedia("(max-width: 700px)");
const collator = new Intl.Collator("en", {numeric: true});
const [heads, body, foot, filter, order, more] = ["heads", "rows", "sums", "filter", "order", "more"].map(at);
let all = [], edition = null, further = 0, rows = new Map(), columns = [], sorting = {column: null, down: true};

function showColumns(wanted) {
  columns = wanted;
  rows = new Map();
  heads.replaceChildren(...columns.map(makeHead));
  order.replaceChildren(...columns.map(column => make("option", "", column.head)));
  if (!columns.includes(sorting.column)) sorting = {column: columns.find(column => column.words), down: true};
  markHeads();
}

function sortBy(column, down) {
  sorting = {column, down};
  markHeads();
  showRules();
}

function markHeads() {
  for (const [index, head] of [...heads.children].entries()) {
    if (columns[index] !== sorting.column) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  }
  order.selectedIndex = columns.indexOf(sorting.column);
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
  const {column, down} = sorting, sign = down ? -1 : 1, compare = column.numeric ? (one, other) => one - other : collator.compare;
  return found.map((rule, index) => [column.value(rule), rule, index])
    .sort((one, other) => sign * compare(one[0], other[0]) || other[1].total - one[1].total || one[2] - other[2]).map(each => each[1]);
}

function numberCell(column) {
  return make("td", "number", document.createTextNode(""), ...(column.bar ? [make("div", column.bar, make("i", ""))] : []));
}

function makeRow(rule) {
  const row = make("tr", "", ...columns.map(column => column.cell ? column.cell(rule) : numberCell(column)));
  for (const [index, cell] of [...row.cells].entries()) cell.dataset.head = columns[index].head;
  row.addEventListener("click", () => { if (getSelection().isCollapsed) openRule(rule); });
  return row;
}

// Rows stay and are filled anew, so that what has the focus keeps it, and thousands of cells are not made each time.
function fill(row, rule, highest) {
  for (const [index, column] of columns.entries()) {
    if (!column.words) continue;
    const cell = row.cells[index], number = column.value(rule), words = column.words(rule);
    if (column.bar) cell.lastChild.firstChild.style.width = `${highest ? 100 * number / highest : 0}%`;
    if (cell.firstChild.data === words) continue;
    cell.firstChild.data = words;
    cell.title = number >= 1e6 ? whole(number) : "";
    cell.className = `number ${column.colour(rule, number)}${number ? "" : " zero"}`;
  }
}

function showSums(found) {
  const numbers = columns.filter(column => column.words), sums = numbers.map(column => {
    const value = found.reduce((sum, rule) => column.together(sum, column.value(rule)), 0);
    return make("td", "number", column.inWords(value));
  });
  const title = make("th", "", found.length === 1 ? "1 rule" : `${whole(found.length)} rules together`);
  title.colSpan = columns.indexOf(numbers[0]);
  title.scope = "row";
  foot.replaceChildren(title, ...sums, make("td", ""));
  numbers.forEach((column, index) => { sums[index].dataset.head = column.head; });
}

function showRules() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sorted(all.filter(rule => words.every(word => rule.text.includes(word)))), first = found.slice(0, (narrow.matches ? FEW : MORE) + further);
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
  const wanted = columnsOf(all, status.columns, status.edition === edition ? columns : []);
  edition = status.edition;
  if (wanted.length !== columns.length || wanted.some((column, index) => column !== columns[index])) showColumns(wanted);
  showRules();
}

// The filter is in the address of the page, so that a link keeps it.
filter.value = new URLSearchParams(location.search).get("filter") || "";
filter.addEventListener("input", () => {
  const address = new URL(location.href);
  if (filter.value) address.searchParams.set("filter", filter.value);
  else address.searchParams.delete("filter");
  history.replaceState(null, "", address);
  showRules();
});

order.addEventListener("change", () => {
  const column = columns[order.selectedIndex];
  sortBy(column, Boolean(column.words));
});
more.addEventListener("click", () => { further += MORE; showRules(); });

// The rules and what they have answered: sorted, searched.

import {at, make, numberCell, pathCell, rate, whole} from "./dom.js";
import {rateOf} from "./status.js";

const MAX_ROWS = 500;
let last = null;

// What a shadow rule lets pass is no refusal.
function colour(rule, over) { return !over ? "" : rule.shadow ? "warn" : "bad"; }

function placeCell(place) {
  const folder = last.reload.path + "/", cell = make("td", "mono soft place", place.startsWith(folder) ? place.slice(folder.length) : place);
  cell.title = place;
  return cell;
}

function bar(number, most, className) {
  const inside = make("i", ""), outside = make("div", "bar " + className, inside);
  inside.style.width = `${most && number ? 100 * number / most : 0}%`;
  return outside;
}

// Of each column: its head, what it is sorted by, its cell, and what its head means. Hits are Within, Over, Exceeded and Spared.
const COLUMNS = [
  ["Domain", rule => rule.domain, rule => make("td", "mono", rule.domain)],
  ["Descriptor", rule => rule.path.join(" "), rule => pathCell(rule.path)],
  ["Limit", rule => rule.limit.replaceAll(",", ""), rule => make("td", "wide", rule.limit)],
  ["Options", rule => rule.options.join(" "), rule => make("td", "", ...rule.options.map(option => make("span", "chip", option)))],
  ["Hits/s", rule => rateOf(rule.key).hits || 0, (rule, most) => make("td", "number", rate(rateOf(rule.key).hits), bar(rateOf(rule.key).hits, most, ""))],
  ["Over/s", rule => rateOf(rule.key).over || 0, (rule, most) =>
    make("td", "number " + colour(rule, rateOf(rule.key).over), rate(rateOf(rule.key).over), bar(rateOf(rule.key).over, most, "over"))],
  ["Hits", rule => rule.total, rule => numberCell(rule.total), "Cost in all: within, over, exceeded and spared"],
  ["Within", rule => rule.within, rule => numberCell(rule.within), "Within the limit"],
  ["Over", rule => rule.over, rule => numberCell(rule.over, colour(rule, rule.over)), "Above the limit"],
  ["Exceeded", rule => rule.exceeded, rule => numberCell(rule.exceeded), "Above the limit, which the rule's exceed option allowed"],
  ["Spared", rule => rule.spared, rule => numberCell(rule.spared), "Not charged, because another limit charged together with this one denied"],
  ["Near", rule => rule.near, rule => numberCell(rule.near), "The part of Within that was near the limit"],
  ["Would have refused", rule => rule.shadow, rule => numberCell(rule.shadow, rule.shadow ? "warn" : ""),
    "The part of Over that a rule in shadow mode let pass"],
  ["By policy", rule => rule.by_policy, rule => numberCell(rule.by_policy, rule.by_policy ? "warn" : ""),
    "Answered without the store, by the rule's policy; in no other column"],
  ["Where", rule => rule.place, rule => placeCell(rule.place)],
];
const FIRST_NUMBER = 4, LAST_NUMBER = COLUMNS.length - 2, collator = new Intl.Collator("en", {numeric: true});
let sorting = {column: FIRST_NUMBER, down: true};

function numeric(column) { return column >= FIRST_NUMBER && column <= LAST_NUMBER; }

function sortBy(column) {
  sorting = {column, down: sorting.column === column ? !sorting.down : numeric(column)};
  showHeads();
  if (last) showRules();
}

function showHeads() {
  [...at("heads").children].forEach((head, column) => {
    if (column !== sorting.column) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  });
}

function makeHeads() {
  at("heads").append(...COLUMNS.map(([text, , , meaning], column) => {
    const button = make("button", "", text), head = make("th", numeric(column) ? "number" : "", button);
    button.type = "button";
    button.title = meaning || "";
    head.scope = "col";
    button.addEventListener("click", () => sortBy(column));
    return head;
  }));
  showHeads();
}

function sorted(found) {
  const value = COLUMNS[sorting.column][1], sign = sorting.down ? -1 : 1;
  const order = numeric(sorting.column) ? (one, other) => one - other : collator.compare;
  // Rules that are equal: the most hits first, then as in the files.
  return found.map((rule, index) => [value(rule), rule, index])
    .sort((one, other) => sign * order(one[0], other[0]) || other[1].total - one[1].total || one[2] - other[2]).map(each => each[1]);
}

function showRules() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sorted(last.rules.filter(rule => words.every(word => rule.text.includes(word)))), rows = found.slice(0, MAX_ROWS);
  const most = Math.max(0, ...rows.map(rule => rateOf(rule.key).hits || 0));
  at("rules").querySelector("tbody").replaceChildren(...rows.map(rule => make("tr", "", ...COLUMNS.map(([, , cell]) => cell(rule, most)))));
  at("count").textContent = found.length > rows.length ? `the first ${whole(rows.length)} of ${whole(found.length)}`
    : words.length ? `${whole(found.length)} of ${whole(last.rules.length)}` : "";
}

export function show(status) {
  last = status;
  showRules();
}

makeHeads();
at("filter").addEventListener("input", () => { if (last) showRules(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && last) showRules(); });

// The columns of the table of rules.

import {link, make, pathWords, rate, whole} from "./dom.js";

const plain = () => "";
const amber = (_, number) => number ? "warn" : "";
// What a rule in shadow mode lets pass is no refusal.
const red = (rule, number) => !number ? "" : rule.shadow ? "warn" : "bad";

function text(head, value, className = "") {
  return {head, value, cell: rule => make("td", className, value(rule))};
}

function counted(head, name, meaning, colour = plain) {
  const value = rule => rule[name];
  return {head, meaning, value, words: rule => whole(value(rule)), colour};
}

function rated(head, name, colour, bar) {
  return {head, value: rule => rule.rates[name] || 0, words: rule => rate(rule.rates[name]), colour, bar};
}

// Of each column: its head, what it is sorted by, and its cell; of a number its words, its colour, and what it means.
export const COLUMNS = [
  text("Domain", rule => rule.domain, "mono"),
  {head: "Descriptor", value: rule => rule.path.join(" "), cell: rule => make("td", "mono", link(...pathWords(rule.path)))},
  {head: "Limit", value: rule => rule.limit.replaceAll(",", ""), cell: rule => make("td", "wide", rule.limit)},
  {head: "Options", value: rule => rule.options.join(" "),
    cell: rule => make("td", "options", ...rule.options.map(option => make("span", "chip", option)))},
  rated("Hits/s", "hits", plain, "bar"),
  rated("Over/s", "over", red, "bar over"),
  counted("Hits", "total", "Cost in all: the sum of Within, Over, Exceeded and Spared"),
  counted("Within", "within", "Within the limit"),
  counted("Over", "over", "Of denied hits", red),
  counted("Exceeded", "exceeded", "Above the limit: allowed by the rule's exceed option, or on loan from its pool"),
  counted("Spared", "spared", "Not charged, because another limit charged together with this one denied"),
  counted("Near", "near", "Below the limit, and near it; a part of the others"),
  counted("Would have refused", "shadow", "The part of Over that a rule in shadow mode let pass", amber),
  counted("By policy", "by_policy", "Answered without the store, by the rule's policy; in no other column", amber),
  text("Where", rule => rule.where, "mono soft"),
];
export const NUMBERS = COLUMNS.filter(column => column.words);

// The columns of the table of rules.

import {link, make, pathWords, rate, whole} from "./dom.js";

const plain = () => "";
const amber = (_, number) => number ? "warn" : "";
// What a rule in shadow mode lets pass is no refusal.
const red = (rule, number) => !number ? "" : rule.shadow ? "warn" : "bad";

function text(head, value, className = "") {
  return {head, value, cell: rule => make("td", className, value(rule))};
}

// Of several rules together a number is their sum, unless it says otherwise.
function number(head, value, inWords, more) {
  return {head, value, inWords, words: rule => inWords(value(rule)), colour: plain, together: (one, other) => one + other, ...more};
}

function counted(head, name, meaning, colour = plain) {
  return number(head, rule => rule[name], whole, {meaning, colour});
}

function rated(head, name, colour, bar) {
  return number(head, rule => rule.rates[name] || 0, rate, {words: rule => rate(rule.rates[name]), colour, bar});
}

// What is true of rules now, where limits of that kind are.
function gauge(head, name, meaning) {
  return number(head, rule => rule[name], whole, {meaning, gauge: name});
}

// What was the highest lately.
function peak(head, name, meaning, inWords = whole) {
  return number(head, rule => rule[name], inWords, {meaning, gauge: name, together: (one, other) => Math.max(one, other)});
}

function milliseconds(seconds) {
  return seconds ? `${whole(Math.ceil(seconds * 1000))} ms` : "0";
}

// Of each column: its head, what it is sorted by, and its cell; of a number its words, its colour, and what it means.
const COLUMNS = [
  text("Domain", rule => rule.domain, "mono"),
  {head: "Descriptor", value: rule => rule.path.join(" "), cell: rule => make("td", "mono", link(...pathWords(rule.path)))},
  {head: "Limit", value: rule => rule.limit.replaceAll(",", ""), cell: rule => make("td", "wide", rule.limit)},
  {head: "Options", value: rule => rule.options.join(" "),
    cell: rule => make("td", "options", ...rule.options.map(option => make("span", "chip", option)))},
  rated("Hits/s", "hits", plain, "bar"),
  rated("Over/s", "denied", red, "bar over"),
  gauge("Leased", "leased", "Counters of which processes hold units, charged in Redis in advance"),
  gauge("Held", "held", "Units of these counters that are not spent yet"),
  gauge("Waiting", "waiting", "Requests that wait for their turn in a queue"),
  peak("Longest wait", "longest_wait_seconds", "Of the turns given in the last minute or two, how far away the farthest was", milliseconds),
  peak("Places taken", "places_taken", "The most places of one counter that were taken in the last minute or two"),
  peak("On loan", "on_loan", "The most that one counter had on loan from its pool in the last minute or two"),
  counted("Hits", "total", "Cost in all: the sum of Within, Over, Exceeded and Spared"),
  counted("Within", "within", "Within the limit"),
  counted("Over", "over", "Of denied hits", red),
  counted("Exceeded", "exceeded", "Above the limit: allowed by the rule's exceed option, or on loan from its pool"),
  counted("Spared", "spared", "Not charged, because another limit charged together with this one denied"),
  counted("Near", "near", "Below the limit, and near it; a part of the others"),
  counted("Would have refused", "shadow", "The part of Over that a rule in shadow mode let pass", amber),
  counted("Allowed by policy", "policy_allowed", "Allowed without the store, by the rule's policy; in no other column", amber),
  counted("Refused by policy", "policy_refused", "Refused without the store, by the rule's policy; in no other column", red),
  counted("Failed", "failed", "Answered with an error, because the store could not decide; in no other column", amber),
  text("Where", rule => rule.where, "mono soft"),
];

// The columns for rules that have these gauges.
export function columnsWith(gauges) {
  return COLUMNS.filter(column => !column.gauge || gauges.includes(column.gauge));
}

// The columns of the table of rules.

import {breakable, link, make, pathWords, rate, short, whole} from "./dom.js";

const LONG = 20;
const plain = () => "";
const amber = (_, number) => number ? "warn" : "";
// What a rule in shadow mode lets pass is not a refusal.
const red = (rule, number) => !number ? "" : rule.shadow ? "warn" : "bad";

// Of several rules together a number is their sum, unless it says otherwise. It has a column while it is not 0 for some.
function number(head, value, inWords, more) {
  return {head, value, inWords, numeric: true, words: rule => inWords(value(rule)), colour: plain, together: (one, other) => one + other, ...more};
}

function counted(head, name, meaning, colour = plain, always = false) {
  return number(head, rule => rule[name], short, {meaning, colour, always});
}

function rated(head, name, colour, bar) {
  return number(head, rule => rule.rates[name] || 0, rate, {words: rule => rate(rule.rates[name]), colour, bar, always: true});
}

// What is true of rules now, where limits of that kind are.
function gauge(head, name, meaning, inWords = short, more = {}) {
  return number(head, rule => rule[name], inWords, {meaning, gauge: name, words: rule => rule[name] ? inWords(rule[name]) : "", ...more});
}

// What was the highest lately.
function peak(head, name, meaning, inWords = short) {
  return gauge(head, name, meaning, inWords, {together: (one, other) => Math.max(one, other)});
}

function milliseconds(seconds) {
  return seconds ? `${whole(Math.ceil(seconds * 1000))} ms` : "0";
}

// Of each column: its head, what it is sorted by, and its cell; of a number its words, its colour, and what it means.
// Numbers come before words, which are as wide as a file makes them.
const COLUMNS = [
  {head: "Domain", value: rule => rule.domain, always: true, cell: rule => make("td", rule.domain.length > LONG ? "mono" : "mono wide", rule.domain)},
  {head: "Descriptor", value: rule => rule.path.join(" "), always: true,
    cell: rule => make("td", "mono", link(...pathWords(rule.path)), make("div", "soft", ...breakable(rule.where)))},
  rated("Hits/s", "hits", plain, "bar"),
  rated("Over/s", "denied", red, "bar over"),
  gauge("Leased", "leased", "Counters of which processes hold units, charged in Redis in advance"),
  gauge("Held", "held", "Units of these counters that are not spent yet"),
  gauge("Waiting", "waiting", "Requests that wait for their turn in a queue"),
  peak("Longest wait", "longest_wait_seconds", "Of the turns given in the last minute or two, how far away the farthest was", milliseconds),
  peak("Places taken", "places_taken", "The most places of one counter that were taken in the last minute or two"),
  peak("On loan", "on_loan", "The most that one counter had on loan from its pool in the last minute or two"),
  counted("Hits", "total", "Cost in all: the sum of Within, Over, Exceeded and Spared", plain, true),
  counted("Within", "within", "Within the limit"),
  counted("Over", "over", "Of denied hits", red, true),
  counted("Exceeded", "exceeded", "Above the limit: allowed by the rule's exceed option, or on loan from its pool"),
  counted("Spared", "spared", "Not charged, because another limit charged together with this one denied, or was charged in its place"),
  counted("Near", "near", "Below the limit, and near it; a part of the others"),
  counted("Would have refused", "shadow", "The part of Over that a rule in shadow mode let pass", amber),
  counted("Not charged", "charges_dropped",
    "Looks pass while charges are refused: costs known at the end need settle, or count_refused: true; a part of Over", amber),
  counted("Allowed by policy", "policy_allowed", "Allowed without the store, by the rule's policy; in no other column", amber),
  counted("Refused by policy", "policy_refused", "Refused without the store, by the rule's policy; in no other column", red),
  counted("Failed", "failed", "Answered with an error, because the store could not decide; in no other column", amber),
  {head: "Limit", value: rule => rule.per_second ?? Infinity, numeric: true, always: true,
    cell: rule => make("td", "limit", rule.limit, " ", ...rule.options.map(option => make("span", "chip", option)))},
];

// The columns for these rules, which have these gauges: none is hidden in which something stands. One that was shown
// stays, or the table would not keep still.
export function columnsOf(rules, gauges, shown) {
  return COLUMNS.filter(column => (!column.gauge || gauges.includes(column.gauge)) &&
    (column.always || shown.includes(column) || rules.some(column.value)));
}

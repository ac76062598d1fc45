// The status of the service: asked for at each tick, with the rates between two answers.

import {get} from "./dom.js";

// The text that is searched, and the key of each rule, are made once for each edition of the rules.
let described = {edition: null, rules: []};

function describe({edition, rules}) {
  return {edition, rules: rules.map(rule => ({...rule, key: JSON.stringify([rule.domain, rule.path]),
    text: [rule.domain, ...rule.path, rule.limit, ...rule.options, rule.place].join(" ").toLowerCase()}))};
}

function countsOf(status, index) {
  const counts = status.counts[index];
  return Object.fromEntries(status.columns.map((name, column) => [name, counts ? counts[column] : 0]));
}

// Of the service now; undefined if the rules changed between the two answers: the next ones agree.
export async function statusNow() {
  const status = await get("/status/now");
  if (described.edition !== status.edition) described = describe(await get("/status/rules"));
  if (described.edition !== status.edition) return undefined;
  status.rules = described.rules.map((rule, index) => ({...rule, ...countsOf(status, index)}));
  return status;
}

let last = null, before = new Map(), rates = new Map();

// A second's increase of what is counted under this key, between the last two answers.
export function rateOf(key) {
  return rates.get(key) || {};
}

export function measure(status) {
  // Hits that a policy answers are in no other number of their rule.
  const now = new Map(status.rules.map(rule => [rule.key, {hits: rule.total + rule.by_policy, over: rule.over}]));
  for (const one of [status.process, ...status.workers]) now.set(`pid ${one.pid}`, {hits: one.cpu_seconds || 0, over: 0});
  now.set("calls", {hits: status.calls.total, over: 0});
  now.set("by_policy", {hits: status.calls.by_policy, over: 0});
  const seconds = last ? status.now - last.now : 0;
  rates = new Map();
  if (seconds > 0 && status.started === last.started) {
    for (const [key, rule] of now) {
      const old = before.get(key);
      if (old) rates.set(key, {
        hits: Math.max(0, rule.hits - old.hits) / seconds, over: Math.max(0, rule.over - old.over) / seconds});
    }
  }
  before = now;
  last = status;
}

// What the service says of itself: asked for at each tick, with the rates between two answers.

import {get} from "./dom.js";
import {merged} from "./history.js";

let edition = null, rules = [], look = -1, history = null, last = null, before = new Map(), rates = new Map();

// A rule keeps what it has counted when the rules are loaded again. What is searched and shown of it is made once.
function describe(found, folder) {
  const known = new Map(rules.map(rule => [rule.key, rule]));
  rules = found.rules.map(rule => {
    const key = JSON.stringify([rule.domain, rule.path]);
    const text = [rule.domain, ...rule.path, rule.limit, ...rule.options, rule.place].join(" ").toLowerCase();
    return {...known.get(key), ...rule, key, text, where: rule.place.replace(`${folder}/`, "")};
  });
  edition = found.edition;
  look = -1;
}

// Of the service now; undefined if the rules changed between two answers: the next ones agree. An answer has the counts
// that changed since an earlier look, and the newest minutes of the history. A page that did not see that look, or the
// minutes before, asks for all counts and minutes, which are newer.
export async function statusNow() {
  let status = await get("/status/recent");
  const {look: seen, since} = status;
  if (status.edition !== edition) describe(await get("/status/rules"), status.reload.path);
  let minutes = merged(history, status.history);
  if (since > look || !minutes) {
    status = await get("/status/now");
    minutes = status.history;
  }
  if (status.edition !== edition) return undefined;
  history = minutes;
  const seconds = last && last.started === status.started ? status.now - last.now : 0;
  count(status, seconds);
  measure(status, seconds);
  look = seen;
  last = status;
  return {...status, history, rules};
}

function count(status, seconds) {
  for (const [index, rule] of rules.entries()) {
    const counts = status.counts[index], {hits, denied} = rule;
    if (counts !== undefined) {
      status.columns.forEach((name, column) => { rule[name] = counts ? counts[column] : 0; });
      // Hits that a policy answers are in no other number of their rule.
      rule.hits = rule.total + rule.policy_allowed + rule.policy_refused + rule.failed;
      rule.denied = rule.over + rule.policy_refused;
    }
    rule.rates = hits === undefined || seconds <= 0 ? {} : increase({hits, denied}, rule, seconds);
  }
}

function increase(old, now, seconds) {
  return {hits: Math.max(0, now.hits - old.hits) / seconds, denied: Math.max(0, now.denied - old.denied) / seconds};
}

// The CPU time that the process of this id took a second, between the last two answers.
export function cpuOf(pid) {
  return rates.get(pid);
}

function measure(status, seconds) {
  const now = new Map([status.process, ...status.workers].map(one => [one.pid, one.cpu_seconds || 0]));
  rates = new Map();
  for (const [key, number] of now) {
    if (seconds > 0 && before.has(key)) rates.set(key, Math.max(0, number - before.get(key)) / seconds);
  }
  before = now;
}

// What POST /explain says, as `ratelimit explain` prints it.

import {date, facts, make, whole} from "./dom.js";

const KINDS = {exact: "exact value", wildcard: "wildcard", list: "list", range: "networks", regex: "regex", not: "not", key: "key alone"};

export function entriesInWords(entries) {
  return entries.map(({key, value}) => `${key}=${value}`).join(" ");
}

function span(seconds) {
  const all = Math.ceil(seconds), parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => all >= length), [length, name] = parts[Math.max(0, first)];
  if (first < 0) return "0 s";
  const [shorter, shorterName] = parts[first + 1] || [1, ""], rest = Math.floor(all % length / shorter);
  return `${whole(Math.floor(all / length))} ${name}${rest && shorterName ? ` ${rest} ${shorterName}` : ""}`;
}

// A process that holds units of a counter.
function holderInWords({worker, pid, units}) {
  return `${worker ? `worker ${worker}` : "the service"} (pid ${pid}: ${units === null ? "not known" : whole(units)})`;
}

export function stateInWords(state) {
  if (state.remaining === null) return "not known: what is in the counter cannot be read";
  if (state.blocked_for) return `blocked for ${span(state.blocked_for)}`;
  const holders = (state.holders || []).map(holderInWords).join(" and ");
  const leased = holders ? ` and ${whole(state.held)} leased to ${holders}` : "";
  const loan = state.on_loan ? `, ${whole(state.on_loan)} on loan` : "";
  const left = `${whole(state.remaining)} of ${whole(state.capacity)} left${leased}${loan}`;
  if (state.retry_after) return `${left}, room for one in ${span(state.retry_after)}`;
  return state.remaining < state.capacity ? `${left}, untouched in ${span(state.reset_after)}` : left;
}

export function banInWords(ban) {
  const until = ban.until === null ? "for ever" : `until ${date(ban.until)}`;
  return `Banned ${until}, by ${ban.who}, because: ${ban.why} (the ban of ${entriesInWords(ban.entries)} in ` +
    `${ban.domain === "*" ? "every domain" : `domain ${ban.domain}`})`;
}

function candidate(one) {
  const place = one.place ? ` (${one.place})` : "";
  return make("li", one.chosen ? "chosen" : "", `${KINDS[one.kind]}  ${one.name}: ${one.reason}${place}`);
}

function step(one) {
  const tried = one.candidates.map(candidate);
  if (one.hidden) tried.splice(-1, 0, make("li", "", `… and ${whole(one.hidden)} more`));
  return make("li", "", `${one.key}=${one.value}, compared as ${one.key}_${one.value}`,
    ...(one.lookup ? [make("p", "", `lookup: ${one.lookup}`)] : []), make("ul", "", ...tried));
}

// The counter of a rule now, or why it is not known.
function now(rule, problem) {
  if (rule.state && rule.regions?.mode === "leased") return `${whole(rule.state.remaining)} left to this region by itself`;
  if (rule.state) return stateInWords(rule.state);
  return problem && rule.counter && !rule.replaced_by.length ? `not known: ${problem}` : "";
}

// The pool of an elastic limit, and what it has now.
function pool({elastic, state}) {
  if (!elastic) return "";
  const {name, counter, burst, reserve} = elastic.pool, text = `${name}, ${counter}`, left = state?.pool_left ?? null;
  if (left === null) return text;
  if (left < 0) return `${text}: ${whole(-left)} in debt, until it is paid nothing is lent`;
  return `${text}: ${whole(left)} of ${whole(burst)} left, ${whole(Math.max(0, left - reserve))} to lend`;
}

function ruleList(rule, problem) {
  const {window} = rule;
  return facts([
    ["Limit", rule.limit],
    ["Now", now(rule, problem)],
    ["Window", window ? `${window.begins} to ${window.ends}, ${window.zone}` : ""],
    ["Counter", rule.counter || "none"],
    ["Pool", pool(rule)],
    ["Regions", rule.regions ? `${rule.regions.written}. ${rule.regions.worst_case.join(" ")}` : ""],
    ["Where", rule.place || "in the request"],
    ["Metrics", rule.metric],
    ["Name", rule.name],
    ["Replaces", rule.replaces.join(", ")],
    ["Replaced by", rule.replaced_by.length ? `the rule at ${rule.replaced_by.join(", ")}` : ""],
    ["Mode", [rule.shadow_mode ? "shadow: counted, denies nothing" : "",
      rule.quota_mode ? "quota: refused when all quotas of a request are used up" : ""].filter(Boolean).join("; ")],
  ]);
}

function descriptor(one, problem, title) {
  return make("section", "explained", make("h3", "mono", title(one)),
    ...(one.steps.length ? [make("ol", "walk mono", ...one.steps.map(step))] : []),
    make("p", "", make("strong", "", one.outcome)),
    ...(one.ban ? [make("p", "bad", banInWords(one.ban))] : []),
    ...one.rules.map(rule => ruleList(rule, problem)),
    ...one.hints.map(hint => make("p", "soft", `Hint: ${hint}`)));
}

// The whole of it, as elements; `title` makes what a descriptor is headed by.
export function explanation(found, title = one => entriesInWords(one.entries)) {
  if (found.problem) return [make("p", "bad", found.problem)];
  const {problem, bans_problem: unknown} = found.store;
  return [...found.descriptors.map(one => descriptor(one, problem, title)),
    ...(unknown ? [make("p", "warn", `Whether it is banned is not known: ${unknown}`)] : []),
    ...(found.response.length ? [make("p", "soft", `Responses have ${found.response.join(", ")}.`)] : [])];
}

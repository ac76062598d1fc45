// The first screen: what is allowed, refused and not limited a second, and how long calls take, each with its last hour;
// below, smaller, the state of what is behind them.

import {ago, ALLOWED, at, draw, duration, make, OUTCOMES, quantile, rate, REFUSED, sumOf, whole} from "./dom.js";

const ALL = OUTCOMES.map(([name]) => name), WIDTH = 200, HEIGHT = 34, COMPARED = 5, MAX_NAMED = 3;

function card(title, value, small, className, ...more) {
  return make("div", "card", make("dt", "", title), make("dd", className || "", value, make("small", "", small), ...more));
}

// How many requests of each minute had these outcomes.
function inMinutes({domains, minutes}, outcomes) {
  const rows = Object.values(domains).flatMap(columns => outcomes.map(name => columns[name]).filter(Boolean));
  return rows.length ? sumOf(rows) : new Array(minutes).fill(0);
}

function sum(numbers) {
  return numbers.reduce((one, other) => one + other, 0);
}

// In the last minute, a second.
function rateNow({last_minute: {outcomes, seconds}}, wanted) {
  return seconds ? sum(wanted.map(name => outcomes[name])) / seconds : 0;
}

function percent(share) {
  if (!share) return "0 %";
  return share < .001 ? "< 0.1 %" : share < .1 ? `${(100 * share).toFixed(1)} %` : `${Math.round(100 * share)} %`;
}

// A line of the minutes that are over, and the last one as it is now. `words` says how high it is.
function spark(name, numbers, words) {
  const most = Math.max(...numbers), step = WIDTH / Math.max(1, numbers.length - 1);
  const points = numbers.map((number, index) => `${(index * step).toFixed(1)} ${(HEIGHT - 1 - (most ? (HEIGHT - 3) * number / most : 0)).toFixed(1)}`);
  const line = `M${points.join("L")}`, shape = {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img"};
  return draw("svg", {...shape, class: `spark ${name}`, "aria-label": `the last 60 minutes: at most ${words(most)}`},
    draw("path", {d: `${line}V${HEIGHT}H0z`, class: "ground"}), draw("path", {d: line, class: "line"}));
}

// The minutes that the service has seen, without the running one, of which the rate is known better.
function seen(history, numbers, now) {
  return [...numbers.slice(Math.max(0, history.minutes - 1 - history.minute), -1), now];
}

function rateCard(title, name, status, outcomes, small, className) {
  const now = rateNow(status, outcomes), numbers = inMinutes(status.history, outcomes).map(number => number / 60);
  return card(title, rate(now), small, now ? className : "", spark(name, seen(status.history, numbers, now), number => `${rate(number)} a second`));
}

// The share of requests that were refused now, and an hour ago.
function shares(status) {
  const {history} = status, all = rateNow(status, ALL), now = `${percent(all && rateNow(status, REFUSED) / all)} of all`;
  const [refused, before] = [REFUSED, ALL].map(outcomes => sum(inMinutes(history, outcomes).slice(0, COMPARED)));
  if (history.minute < history.minutes - 1 || !before) return now;
  return `${now}; an hour ago ${percent(refused / before)}`;
}

// What no rule is about: the domains, and the keys of descriptors, that are asked about most.
function unruled({unknown_domains: domains, unmatched, calls}) {
  if (!calls.outcomes.unlimited) return "each request met a rule";
  const names = [...domains.map(one => `domain ${one.path[0]}`), ...unmatched.map(one => one.path.join(" › "))];
  return `no rule: ${names.slice(0, MAX_NAMED).join(", ")}${names.length > MAX_NAMED ? ` and ${whole(names.length - MAX_NAMED)} more` : ""}`;
}

function latencyCard({history, last_minute: {latency, calls}}) {
  const numbers = history.latency.p99.slice(Math.max(0, history.minutes - 1 - history.minute));
  return card("99 % answered in", quantile(latency, calls, .99), `half in ${quantile(latency, calls, .5)}, in the last minute`, "",
    spark("p99", numbers, seconds => seconds ? duration(seconds) : "nothing"));
}

function large(status) {
  return [
    rateCard("Allowed a second", "allowed", status, ALLOWED, `of ${rate(rateNow(status, ALL))} in all, in the last minute`, "good"),
    rateCard("Refused a second", "refused", status, REFUSED, shares(status), "bad"),
    rateCard("Not limited a second", "unlimited", status, ["unlimited"], unruled(status), "violet"),
    latencyCard(status),
  ];
}

function storeCards({last_minute: {store}}) {
  const {requests, latency, errors} = store, causes = Object.entries(errors), cards = [];
  if (requests) cards.push(card("99 % of the store's answers in", quantile(latency, requests, .99), `half in ${quantile(latency, requests, .5)}`));
  if (causes.length) cards.push(card("Errors of the store", whole(sum(Object.values(errors))),
    causes.map(([cause, number]) => `${cause} ${whole(number)}`).join(", ") + ", in the last minute", "bad"));
  return cards;
}

function policyCards(status) {
  const {policy_allowed: allowed, policy_refused: refused} = status.calls.outcomes;
  if (!allowed && !refused) return [];
  const [now, denied] = [["policy_allowed", "policy_refused"], ["policy_refused"]].map(outcomes => rateNow(status, outcomes));
  return [card("Answered by policy a second", rate(now), `without the store, ${rate(denied)} of it refused; ${whole(allowed + refused)} since the start`, now ? "warn" : "")];
}

function failedCard(status) {
  const {service_errors: own, store_errors: store} = status.calls, lately = status.last_minute.outcomes.failed;
  const since = own + store ? `; since the start ${whole(own)} by the request or rules, ${whole(store)} by the store` : "";
  return card("Failed calls", whole(lately), `in the last minute${since}`, lately ? "warn" : "");
}

function planeCard(plane, now) {
  const version = plane.kept ? `rules of its last snapshot, from ${plane.kept}` : plane.version ? `version ${plane.version}` : "no rules yet";
  const state = `${plane.connected ? "connected" : "lost"} ${ago(now - plane.since)} ago`;
  return card("Control plane", plane.connected ? plane.address : `${plane.address} is lost`,
    `${state}; ${version}; ${whole(plane.accepted)} snapshot${plane.accepted === 1 ? "" : "s"} accepted, ${whole(plane.rejected)} refused`, plane.connected ? "" : "bad");
}

function small(status) {
  const {store, calls, reload, last_minute: {loop_lag: lag}, rules, now} = status;
  return [
    ...storeCards(status),
    ...(lag ? [card("Event loop late by", quantile(lag.latency, lag.timers, .99), `99 % of timers; half ${quantile(lag.latency, lag.timers, .5)}`)] : []),
    failedCard(status),
    ...(calls.shadowed ? [card("Would have been refused", whole(calls.shadowed), "calls that SHADOW_MODE allowed, since the start", "warn")] : []),
    ...policyCards(status),
    card("Store", store.healthy ? store.name : `${store.name} is lost`,
      `${whole(store.counters)} ${store.name === "memory" ? "counter" : "key"}${store.counters === 1 ? "" : "s"}` +
      (store.name === "memory" ? "" : " in its database") +
      (store.evicted ? `; ${whole(store.evicted)} evicted because it was full` : ""), store.healthy ? "" : "bad"),
    card("Rules", whole(rules.length),
      reload.last_success ? `loaded ${ago(now - reload.last_success)} ago from ${reload.path}` : `none from ${reload.path} yet`,
      reload.current ? "" : "bad"),
    ...reload.sources.flatMap(({connection}) => connection ? [planeCard(connection, now)] : []),
  ];
}

export function show(status) {
  at("now").replaceChildren(...large(status));
  at("cards").replaceChildren(...small(status));
}

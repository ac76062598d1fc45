// The loop: asks the service every few seconds, and gives what it says to each section.

import {ago, at, date, make, rate, setText, whole} from "./dom.js";
import {rateOf, statusNow} from "./status.js";
import * as bans from "./bans.js";
import * as dialog from "./dialog.js";
import * as lately from "./lately.js";
import * as past from "./past.js";
import * as processes from "./processes.js";
import * as requests from "./requests.js";
import * as rules from "./rules.js";
import * as settings from "./settings.js";
import * as tryIt from "./try.js";
import * as who from "./who.js";

const AGAIN = 2000, SLOWLY = 10000, MANY_RULES = 10000;
const SECTIONS = [lately, who, rules, processes, bans, requests, tryIt, past, settings, dialog];
let wait = AGAIN;

function quantile(buckets, total, share) {
  const found = buckets.find(([, calls]) => calls >= total * share);
  if (!total) return "–";
  if (!found) return "> 10 s";
  const ms = found[0] * 1000;
  return "≤ " + (ms < 1 ? ms * 1000 + " µs" : ms < 1000 ? ms + " ms" : ms / 1000 + " s");
}

function card(title, value, small, className) {
  return make("div", "card", make("dt", "", title), make("dd", className || "", value, make("small", "", small)));
}

function stateOf(status) {
  if (status.draining) return ["bad", "draining"];
  if (!status.serving) return ["bad", "not serving"];
  if (!status.store.healthy) return ["bad", "serving without its store"];
  return status.troubles.length ? ["warn", "serving, with trouble"] : ["good", "serving"];
}

function banner(trouble) {
  const details = trouble.details.length ? [make("ul", "", ...trouble.details.map(one => make("li", "", one)))] : [], since = make("span", "");
  since.setAttribute("aria-live", "off");
  return make("section", "alarm", make("strong", "", trouble.what), since,
    make("p", "", `Why: ${trouble.why}.`), make("p", "", `Meanwhile ${trouble.meanwhile}.`), ...details);
}

// A banner that stays is not made anew: a screen reader would read it out again and again.
function showTroubles({troubles, now}) {
  const key = JSON.stringify(troubles);
  if (key !== at("troubles").dataset.key) at("troubles").replaceChildren(...troubles.map(banner));
  at("troubles").dataset.key = key;
  troubles.forEach(({since}, index) => {
    at("troubles").children[index].children[1].textContent = since === null ? "" : `, for ${ago(now - since)} (since ${date(since)})`;
  });
}

function showLost(words) {
  at("lost").hidden = !words;
  setText(at("lost"), words);
}

function byPolicy({policy_allowed: allowed, policy_refused: refused}) {
  const rates = [rateOf("policy_allowed"), rateOf("policy_refused")];
  return allowed + refused ? [card("Answered by policy", whole(allowed + refused),
    `without the store: ${rate(rates[0])} a second allowed, ${rate(rates[1])} refused`, "warn")] : [];
}

function showState(status) {
  const [className, words] = stateOf(status);
  at("state").className = "state " + className;
  at("state").textContent = words;
  showTroubles(status);
  at("about").textContent = `version ${status.version}, Python ${status.python}, up ${ago(status.now - status.started)}`;
  const {store, calls, reload, last_minute: minute} = status;
  at("cards").replaceChildren(
    card("Calls a second", rate(minute.calls / minute.seconds), `in the last minute; ${whole(calls.total)} in all`),
    card("99 % answered in", quantile(minute.latency, minute.calls, .99),
      `half in ${quantile(minute.latency, minute.calls, .5)}, in the last minute`),
    ...(minute.store.requests ? [card("99 % of the store's answers in", quantile(minute.store.latency, minute.store.requests, .99),
      `half in ${quantile(minute.store.latency, minute.store.requests, .5)}; ${whole(minute.store.requests)} in the last minute`)] : []),
    ...(Object.keys(minute.store.errors).length ? [card("Errors of the store",
      whole(Object.values(minute.store.errors).reduce((sum, each) => sum + each, 0)),
      Object.entries(minute.store.errors).map(([cause, number]) => `${cause} ${whole(number)}`).join(", ") + ", in the last minute", "bad")] : []),
    ...(minute.loop_lag ? [card("Event loop late by", quantile(minute.loop_lag.latency, minute.loop_lag.timers, .99),
      `99 % of timers in the last minute; half ${quantile(minute.loop_lag.latency, minute.loop_lag.timers, .5)}`)] : []),
    card("Failed calls", whole(calls.service_errors + calls.store_errors),
      `${whole(calls.service_errors)} by the request or rules, ${whole(calls.store_errors)} by the store`,
      calls.service_errors + calls.store_errors ? "warn" : ""),
    ...(calls.shadowed ? [card("Would have been refused", whole(calls.shadowed), "calls that SHADOW_MODE allowed", "warn")] : []),
    ...byPolicy(calls.outcomes),
    card("Store", store.healthy ? store.name : `${store.name} is lost`,
      `${whole(store.counters)} ${store.name === "memory" ? "counter" : "key"}${store.counters === 1 ? "" : "s"}` +
      (store.name === "memory" ? "" : " in its database") +
      (store.evicted ? `; ${whole(store.evicted)} evicted because it was full` : ""), store.healthy ? "" : "bad"),
    card("Rules", whole(status.rules.length),
      reload.last_success ? `loaded ${ago(status.now - reload.last_success)} ago from ${reload.path}` : `none from ${reload.path} yet`,
      reload.current ? "" : "bad"),
    card("Listening", whole(status.listening.length) + (status.listening.length === 1 ? " address" : " addresses"),
      status.listening.map(one => `${one.what} ${one.address}`).join(", ")));
}

async function tick() {
  const status = await statusNow().catch(error => {
    at("state").className = "state bad";
    at("state").textContent = "not reached";
    showLost(`The service does not answer (${error.message}); what is shown below is old.`);
  });
  if (!status) return;
  showLost("");
  showState(status);
  for (const section of SECTIONS) section.show(status);
  wait = status.rules.length > MANY_RULES ? SLOWLY : AGAIN;
}

async function look() {
  try {
    if (!document.hidden) await tick();
  } finally {
    setTimeout(look, wait);
  }
}

look();

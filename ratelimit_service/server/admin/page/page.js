// The loop: asks the service every few seconds, and gives what it says to each section.

import {ago, at, date, focusFrames, make, setText} from "./dom.js";
import {statusNow} from "./status.js";
import * as bans from "./bans.js";
import * as dialog from "./dialog.js";
import * as lately from "./lately.js";
import * as now from "./now.js";
import * as past from "./past.js";
import * as processes from "./processes.js";
import * as refusals from "./refusals.js";
import * as requests from "./requests.js";
import * as rules from "./rules.js";
import * as settings from "./settings.js";
import * as stored from "./stored.js";
import * as tryIt from "./try.js";
import * as who from "./who.js";

const AGAIN = 2000, SLOWLY = 10000, MANY_RULES = 10000;
const SECTIONS = [now, who, refusals, lately, rules, stored, processes, bans, requests, tryIt, past, settings, dialog];
let wait = AGAIN;

function stateOf(status) {
  if (status.draining) return ["bad", "draining"];
  if (!status.serving) return ["bad", "not serving"];
  if (!status.store.healthy) return ["bad", "serving without its store"];
  return status.troubles.length ? ["warn", "serving, with trouble"] : ["good", "serving"];
}

function banner(trouble) {
  const details = trouble.details.length ? [make("ul", "", ...trouble.details.map(one => make("li", "", one)))] : [], since = make("span", "");
  since.setAttribute("aria-live", "off");
  return make("div", "alarm", make("strong", "", trouble.what), since,
    make("p", "", `Why: ${trouble.why}.`), make("p", "", `Meanwhile ${trouble.meanwhile}.`), ...details);
}

// A banner that stays is not made anew: a screen reader would read it out again and again.
function showTroubles({troubles, now: moment}) {
  const key = JSON.stringify(troubles);
  if (key !== at("troubles").dataset.key) at("troubles").replaceChildren(...troubles.map(banner));
  at("troubles").dataset.key = key;
  troubles.forEach(({since}, index) => {
    at("troubles").children[index].children[1].textContent = since === null ? "" : `, for ${ago(moment - since)} (since ${date(since)})`;
  });
}

function showLost(words) {
  at("lost").hidden = !words;
  setText(at("lost"), words);
}

function showState(status) {
  const [className, words] = stateOf(status);
  at("state").className = "state " + className;
  at("state").textContent = words;
  showTroubles(status);
  at("about").textContent = `version ${status.version}, Python ${status.python}, up ${ago(status.now - status.started)}`;
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
  focusFrames();
  wait = status.rules.length > MANY_RULES ? SLOWLY : AGAIN;
}

async function look() {
  try {
    if (!document.hidden) await tick();
  } finally {
    setTimeout(look, wait);
  }
}

// A link to a section that is closed opens it.
function openSection() {
  const section = document.getElementById(location.hash.slice(1));
  if (section?.tagName === "DETAILS") section.open = true;
}

addEventListener("hashchange", openSection);
addEventListener("resize", focusFrames);
openSection();
look();

// What another limit of a rule would have refused lately, as the service estimates it, and the line for the file.

import {ago, get, make, whole} from "./dom.js";

const HIGHEST = 2 ** 50, TIMES = 10, LEAST = 20, AFTER = 150;

function keys(number) {
  return `${whole(number)} ${number === 1 ? "key" : "keys"}`;
}

function said({was, would, seconds, requests, hits, keys: all, estimate}, limit) {
  const lately = `In the last ${ago(seconds)}`;
  if (requests === limit) return `${lately} it refused ${whole(was.refused)} of ${whole(hits)}, of ${keys(was.keys)} of ${whole(all)}.`;
  return `${lately} ${whole(requests)} in place of ${whole(limit)} would have refused ${estimate ? "about " : ""}${whole(would.refused)} ` +
    `in place of ${whole(was.refused)}, of ${keys(would.keys)} in place of ${whole(was.keys)}.`;
}

// What is not known exactly of it.
function doubts({estimate, error, skipped}) {
  return [
    estimate ? "An estimate: it takes the hits of a key to come evenly, in the windows in which it was refused if it was." : "",
    skipped ? `${whole(skipped)} hits were too many to look at.` : error ? `Of keys with few hits some are missing, at most ${whole(error)} hits of each.` : "",
  ].join(" ");
}

export class WhatIf {
  constructor(asked) {
    this.asked = asked;
    this.limit = null;
    this.number = this.input("number", "Requests");
    this.slider = this.input("range", "Requests, by a slider");
    this.number.max = HIGHEST;
    this.words = make("p", "");
    this.words.setAttribute("role", "status");
    this.doubts = make("p", "soft");
    this.yaml = make("code", "mono");
    this.place = make("span", "soft");
    this.section = make("section", "", make("h3", "", "What if the limit were another one"),
      make("p", "tools", "Requests", this.number, this.slider), this.words, this.doubts, make("p", "", this.yaml, " ", this.place));
    this.section.hidden = true;
  }

  input(type, name) {
    const input = make("input", "");
    Object.assign(input, {type, min: 0, ariaLabel: name});
    input.addEventListener("input", () => this.choose(input.value));
    return input;
  }

  choose(value) {
    this.number.value = this.slider.value = value;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), AFTER);
  }

  // The first answer is of the limit in force. Of a limit of which nothing can be said, there is no such section.
  async refresh() {
    const {value} = this.number;
    try {
      this.show(await get("/status/what-if", value === "" ? this.asked : {...this.asked, requests: value}));
    } catch (error) {
      if (this.limit !== null) this.words.textContent = error.message;
    }
  }

  show(found) {
    if (this.limit === null) this.begin(found.requests);
    if (String(found.requests) !== this.number.value) return; // another one was chosen meanwhile
    this.words.textContent = said(found, this.limit);
    this.doubts.textContent = doubts(found);
    this.yaml.textContent = found.yaml;
    this.place.textContent = found.place && `in ${found.place}`;
  }

  begin(requests) {
    this.limit = requests;
    this.slider.max = Math.min(HIGHEST, Math.max(LEAST, TIMES * requests));
    this.slider.step = Math.max(1, Math.round(requests / LEAST));
    this.number.value = this.slider.value = requests;
    this.section.hidden = false;
  }
}

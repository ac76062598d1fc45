// What an operator may do, and how it is told what came of it.

import {date, get, make, send, whole} from "./dom.js";

const WHO = "the page"; // the service adds the address

export async function ban(domain, entries, length, why) {
  const {until, note} = await send("/bans", {domain, entries, for: length, why, who: WHO});
  return `Banned ${until === null ? "for ever" : `until ${date(until)}`}.${note ? ` But ${note}.` : ""}`;
}

export async function lift(domain, entries) {
  await send("/bans", {domain, entries, who: WHO}, "DELETE");
  return "The ban is lifted.";
}

export async function reset(domain, entries) {
  const {reset: number} = await send("/counters/reset", {domain, entries, who: WHO});
  return number === 1 ? "1 counter is reset." : `${whole(number)} counters are reset.`;
}

// Buttons of acts are disabled for a client that may do none, and the line says why.
export async function disableUnlessAllowed(result, buttons) {
  try {
    const {why} = await get("/status/access");
    if (!why) return;
    for (const one of buttons) one.disabled = true;
    result.say("warn", why);
  } catch {
    // The act itself says what is wrong.
  }
}

// A line that says what came of an act, or why it was refused.
export class Result {
  constructor() {
    this.line = make("p", "");
    this.line.setAttribute("role", "status");
  }

  async of(act) {
    try {
      this.say("good", await act());
    } catch (error) {
      this.say("bad", error.message);
    }
  }

  say(className, words) {
    this.line.className = className;
    this.line.textContent = words;
  }
}

// The settings in force. They are asked for when the section is opened, and again after the service has started anew.

import {at, get, make, whole} from "./dom.js";

let all = [], started = null, last = null;

function makeRow(setting) {
  return make("tr", "", make("td", "mono", setting.name), make("td", setting.default ? "value mono soft" : "value mono", setting.value),
    make("td", "", setting.default ? "default" : "set"), make("td", "", setting.help));
}

function showRows() {
  const words = at("settings-filter").value.toLowerCase().split(/\s+/).filter(Boolean), chosen = at("settings-chosen").checked;
  const found = all.filter(one => (!chosen || !one.default) && words.every(word => `${one.section} ${one.name} ${one.value} ${one.help}`.toLowerCase().includes(word)));
  at("settings-rows").replaceChildren(...found.map(makeRow));
  at("settings-count").textContent = `${whole(found.length)} of ${whole(all.length)}; ${whole(all.filter(one => !one.default).length)} are not the default`;
}

export async function show(status) {
  last = status;
  if (!at("settings").open || started === status.started) return;
  try {
    all = (await get("/status/settings")).settings;
    started = status.started;
    showRows();
  } catch (error) {
    at("settings-count").textContent = error.message;
  }
}

at("settings").addEventListener("toggle", () => { if (last) show(last); });
at("settings-filter").addEventListener("input", showRows);
at("settings-chosen").addEventListener("change", showRows);

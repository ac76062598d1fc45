// The dialog that shows more of a rule or a descriptor. While it is open its contents are brought up to date.

import {at} from "./dom.js";

const [dialog, title, body] = ["dialog", "dialog-title", "dialog-body"].map(at);
const nothing = async () => {};
let update = nothing;

// `refresh` is called now, and at each tick while the dialog is open.
export function openDialog(words, contents, refresh = nothing) {
  title.replaceChildren(...words);
  body.replaceChildren(...contents);
  update = refresh;
  if (!dialog.open) dialog.showModal();
  at("dialog-close").focus(); // what had the focus may be gone
  return update();
}

export function show() {
  if (dialog.open) update();
}

at("dialog-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });

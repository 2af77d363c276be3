// The page: logged in or not, the frame, and the screen that the address names.

import { resume } from "./api.js";
import { Frame } from "./frame.js";
import { showLogin } from "./screens/login.js";

const app = document.getElementById("app");

async function start() {
  try {
    enter(await resume());
  } catch (error) {
    showLogin(app, enter, error.status === 401 ? "" : error.message);
  }
}

function enter(session) {
  const frame = new Frame(app, session, (why) => {
    frame.leave();
    showLogin(app, enter, why);
  });
  frame.start();
}

start();

// The cluster as a picture: members on a circle, links between those that are in one view, and who is missing.

import { replace, svg } from "../dom.js";
import { seconds, shortened } from "../format.js";

const SIGNS = { "in step": "✓", "catching up": "↻", joining: "…", lost: "✕", unknown: "?", draining: "↓", drained: "–", stranded: "!" };
const LATE = 1.0;

export const stateClass = (state) => state.replace(" ", "-");
export const kindOf = (state) => ({ "in step": "good", lost: "bad", stranded: "bad", unknown: "", drained: "" })[state] ?? "mind";

export function drawCluster(picture, cluster) {
  const members = cluster.members;
  const alone = members.length === 1;
  // In pixels of the screen, so that letters have one size on any.
  const width = Math.max(270, Math.min(440, picture.parentNode.clientWidth || 440));
  const [across, down] = alone ? [0, 0] : [width * 0.31, members.length > 4 ? 118 : 78];
  const height = alone ? 150 : 2 * down + 174;
  const places = members.map((member, at) => {
    const angle = (at / members.length) * 2 * Math.PI - Math.PI / 2;
    const above = !alone && Math.sin(angle) < -0.2;
    return { member, x: width / 2 + Math.cos(angle) * across, y: (alone ? 40 : 92 + down) + Math.sin(angle) * down, above };
  });
  const there = (member) => member.incarnation !== null || !cluster.clustered;
  const links = [];
  places.forEach((one, at) => {
    for (const other of places.slice(at + 1)) {
      const asked = one.member.this ? other.member : other.member.this ? one.member : null;
      const whole = there(one.member) && there(other.member);
      const lost = one.member.state === "lost" || other.member.state === "lost";
      const kind = lost ? "none" : !whole ? "unsure" : asked?.silence > LATE ? "late" : asked ? "ours" : "";
      links.push(svg("line", { class: `link ${kind}`.trim(), x1: one.x, y1: one.y, x2: other.x, y2: other.y }));
    }
  });
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label", describe(cluster));
  replace(picture, links, places.map((each) => drawMember(each, cluster)));
}

// What is written stands at the outer side: no link crosses it.
function drawMember({ member, x, y, above }, cluster) {
  const row = (number) => y + (above ? -64 + number * 15 : 46 + number * 15);
  const roles = [
    member.name === cluster.coordinator ? "coordinator" : null,
    member.voter ? "voter" : null,
    member.this ? "this node" : null,
  ].filter(Boolean);
  return svg(
    "g", { class: `member ${stateClass(member.state)}${member.this ? " this" : ""}`, "data-member": member.name },
    member.this ? svg("circle", { class: "ring", cx: x, cy: y, r: 29 }) : null,
    svg("circle", { class: "disc", cx: x, cy: y, r: 23 }),
    svg("text", { class: "sign", x, y: y + 6 }, SIGNS[member.state] ?? "?"),
    svg("text", { x, y: row(0) }, shortened(member.name, 22)),
    svg("text", { class: "sub state", x, y: row(1) }, member.state),
    svg("text", { class: "sub", x, y: row(2) }, roles.join(" · ")),
  );
}

export function describe(cluster) {
  const told = cluster.members.map((member) => {
    const heard = member.silence === null || member.silence === undefined ? "" : `, heard ${seconds(member.silence)} ago`;
    return `${member.name} is ${member.state}${heard}`;
  });
  return cluster.clustered ? `A cluster of ${cluster.members.length}: ${told.join("; ")}` : `${cluster.node} stands alone`;
}

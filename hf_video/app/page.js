// A click on a segment, or Enter on it, makes the player jump to its start and play.
document.addEventListener("click", (event) => {
  const segment = event.target.closest("#segments button[data-start]");
  const player = document.querySelector("#player video");
  if (!segment || !player) return;
  player.currentTime = Number(segment.dataset.start);
  player.play();
  player.scrollIntoView({ block: "nearest" });
});

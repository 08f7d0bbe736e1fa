// A click on a segment, or Enter on it, makes the player jump to its start and play.
document.addEventListener("click", (event) => {
  const segment = event.target.closest("#segments button[data-start]");
  const player = document.querySelector("#player video");
  if (!segment || !player) return;
  player.currentTime = Number(segment.dataset.start);
  player.play();
  player.scrollIntoView({ block: "nearest" });
});

// A video that is too large is refused with a sentence before it is sent. The server refuses it as well.
for (const kind of ["change", "drop"]) {
  document.addEventListener(
    kind,
    (event) => {
      if (!event.target.closest?.("#video")) return;
      const largest = Number(document.querySelector('meta[name="max-upload"]').content);
      const files = [...(event.target.files ?? event.dataTransfer?.files ?? [])];
      const refused = files.find((file) => file.size > largest * 2 ** 20);
      if (!refused) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (kind === "change") event.target.value = "";
      const message = document.querySelector("#message [role=status]");
      message.textContent = `${refused.name} is larger than ${largest} MB, the most that this page takes.`;
      message.className = "problem";
    },
    true,
  );
}

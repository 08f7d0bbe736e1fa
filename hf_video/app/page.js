// A click on a segment, or Enter on it, makes the player jump to its start and play.
document.addEventListener("click", (event) => {
  const segment = event.target.closest("#segments button[data-start]");
  const player = document.querySelector("#player video");
  if (!segment || !player) return;
  player.currentTime = Number(segment.dataset.start);
  player.play().catch(() => {}); // a browser that cannot play it has said so
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

// A video that the browser cannot play is no error: the model reads more kinds. Gradio would show one.
for (const kind of ["error", "loadstart"]) {
  document.addEventListener(
    kind,
    (event) => {
      if (!event.target.matches?.("#player video")) return;
      const isProblem = kind === "error";
      if (isProblem) event.stopImmediatePropagation();
      document.querySelector("#playback [role=status]").textContent = isProblem
        ? "This browser cannot play the video. The model may read it all the same: go on below."
        : "";
    },
    true,
  );
}

// When a recording is stopped, Gradio sends what its recorder has given until then, which is nothing on a busy machine.
// So the click waits until the recorder has given everything.
if (window.MediaRecorder) {
  const { start } = MediaRecorder.prototype;
  let recorder;
  MediaRecorder.prototype.start = function (...milliseconds) {
    recorder = this;
    start.apply(this, milliseconds);
  };
  document.addEventListener(
    "click",
    (event) => {
      const button = event.target.closest("#video button");
      if (!button?.querySelector('[title="stop recording"]') || recorder?.state !== "recording") return;
      event.stopImmediatePropagation();
      recorder.addEventListener("stop", () => button.click(), { once: true });
      recorder.stop();
    },
    true,
  );
}

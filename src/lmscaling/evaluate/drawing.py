"""Images drawn by a trained model, pixel by pixel, from the states of its layers.

The time of a pixel is that of a decode step for all images together. Process time on a CPU does not
count other jobs, and of several passes the fastest counts, for the first one loads.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.2.

Legend: N images, B images drawn together, T pixels.
"""

import math
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.evaluate import sampling
from lmscaling.files import read_json, write_record
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.records.sample import Sample
from lmscaling.runtime import environment, gpus

IMAGES = 16
"""Images that are drawn."""
SEED = 0
TEMPERATURE = 1.0
PASSES = 3
"""All draw the same images."""


def draw_images(run: Path, manifest: Path, out: Path) -> str:
    """Draw images with the final weights of a run, and write them as a record.

    A run whose weights cannot draw, or whose record is damaged, has a record without images. A
    sample of these weights that exists stays as it is.

    Args:
        run: ``results/<study>/runs/<run>``.
        manifest: ``manifest.json`` of the tokens that it trained on.
        out: Path of the record.

    Returns:
        A summary in one sentence.

    Raises:
        UserError: The run is not finished, or these tokens are no images.
    """
    record = run / "run.json"
    if out.is_file() and record.is_file() and out.stat().st_mtime >= record.stat().st_mtime:
        return f"{out} exists and stays as it is"
    stream = Stream(manifest, "validation")
    shape, pixels_NT = _images(stream)
    levels, images, speed, device = int(pixels_NT.max()), [], None, ""
    try:
        with gpus.reserved(min(1, finished_run.cell(run).gpus)):
            model, device = _model(run)
            images, speed = _drawn(model, pixels_NT.shape[1], levels, stream.end_of_text)
        summary = f"{len(images)} images of {run.name}, {speed:,.0f} pixels/s"
    except UserError as error:
        if not record.is_file():
            raise
        summary = f"{error}; {out} has no images"
    sample = Sample(
        run=run.name,
        shape=shape,
        levels=levels,
        images=images,
        data=pixels_NT[:IMAGES].tolist(),
        temperature=TEMPERATURE,
        batch=IMAGES,
        tokens_per_second=speed,
        device=device,
    )
    write_record(out, {"record": sample.record, **asdict(sample)})
    return summary


def _images(stream: Stream) -> tuple[list[int], Tensor]:
    """Rows, columns and perhaps colours of an image, and the images of a split, ``[N, T]``."""
    sidecar = (stream.folder / stream.shards[0].file).with_suffix(".json")
    shape = read_json(sidecar, "sidecar")["source"].get("shape")
    if shape is None:
        raise UserError(f"tokens {stream.folder} have no images; name those of a dataset of images")
    tokens = torch.from_numpy(stream.read(0, stream.tokens).astype("int64"))
    return shape, tokens[tokens != stream.end_of_text].view(-1, math.prod(shape))


def _model(run: Path) -> tuple[GPT, str]:
    """The model of a run and the name of its device: a GPU if the run had one and there is one.

    Raises:
        UserError: The run left no weights, or those with which it diverged.
    """
    cell, model = finished_run.cell(run), finished_run.model(run).eval()
    has_diverged = read_json(run / "run.json", "run record")["status"] == "diverged"
    if has_diverged or not all(p.isfinite().all() for p in model.parameters()):
        raise UserError(
            f"run {run.name} diverged, so its weights draw nothing; to train it again, type "
            f"lmscaling reset {run.name}"
        )
    if not (cell.gpus and torch.cuda.is_available()):
        return model, environment.processor()
    return model.to("cuda", torch.bfloat16), torch.cuda.get_device_name()


def _drawn(model: GPT, n: int, levels: int, end_of_text: int) -> tuple[list[list[int]], float]:
    """Images of n pixels from 0 to ``levels``, and pixels per second of the decode steps."""
    device = model.wte.weight.device
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    prompt_BT = torch.full((IMAGES, 1), end_of_text, device=device)
    allowed_V = torch.arange(model.vocab_size) <= levels
    images, seconds = [], []
    for _ in range(PASSES):
        steps = sampling.generate(model, prompt_BT, n, TEMPERATURE, SEED, allowed_V)
        first = next(steps).tolist()  # with the prompt
        start = clock()
        others = torch.stack(list(steps)).tolist()
        seconds.append(clock() - start)
        images = [list(pixels) for pixels in zip(first, *others, strict=True)]
    return images, IMAGES * (n - 1) / min(seconds)

"""Does the demo play what it is asked for? Held-out prompts through the real tick loop and the real codec."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.prompts import Request, draw_request
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import Song, draw_instruments, draw_song
from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.evaluation.instruments import solo, train_ear
from configs.demo.recipe.evaluation.measure import (
    difference,
    in_key_energy,
    is_tempo,
    layers_present,
)
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS, pitch_channels
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    FRAME_RATE_HZ,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    SILENCE,
    FloatArray,
    latents_from_levels,
    levels_from_latents,
)
from runtime.audio.finishing import block_energies, loudness_lufs
from runtime.pipeline.compose import GenerationInputs

HELD_OUT_SEED: Final = 2_000_003
NUM_PROMPTS: Final = 64
SEEDS_PER_LAYER: Final = 12
SEEDS_DIFFER_BY: Final = 0.1
LONG_S: Final = 180.0
WINDOW_S: Final = 10.0
NUM_LONG: Final = 6
NUM_COVERS: Final = 16
NUM_FINISHED: Final = 6
FINISHED_S: Final = 25.0

# What a layer is called alone, and in combinations; every layer is asked for and not asked for in several.
LAYER_PROMPTS: Final[dict[str, tuple[str, ...]]] = {
    "pads": ("pad",),
    "arpeggios": ("arp",),
    "bass": ("bass",),
    "melody": ("melody",),
    "drums": ("drums",),
    "pads and melody": ("pad", "melody"),
    "bass and drums": ("bass", "drums"),
    "arpeggios, bass and melody": ("arp", "bass", "melody"),
}
_LAYER_WORDS: Final = {"pad": "chords", "arp": "arpeggios", "bass": "bassline", "melody": "melody", "drums": "drums"}
_COVER_MOODS: Final = ("calm", "energetic", "dreamy", "bright", "dark", "warm", "soft", "epic")


@dataclass(frozen=True)
class Scores:
    """Shares in [0, 1], each over all prompts that name the property."""

    in_key: float
    layers_present: float
    layers_absent: float
    tempo: float

    def rounded(self, prefix: str = "") -> Figures:
        """The values rounded, for bundle.toml."""
        return {f"{prefix}{name}": round(value, 4) for name, value in vars(self).items()}


def held_out_requests(count: int = NUM_PROMPTS) -> list[Request]:
    """Prompts of songs that training never drew."""
    rngs = (np.random.default_rng([HELD_OUT_SEED, index]) for index in range(count))
    return [draw_request(draw_song(rng), rng) for rng in rngs]


def score(requests: Sequence[Request], rolls: Iterable[FloatArray]) -> Scores:
    """Score levels `[T, C]`, one per request, each for what its own prompt names."""
    in_key, present, absent, tempo = [], [], [], []
    for request, levels in zip(requests, rolls, strict=True):
        sounding = layers_present(levels)
        present += [layer in sounding for layer in request.layers_asked]
        absent += [layer not in sounding for layer in request.layers_excluded]
        if request.names_key:
            in_key.append(in_key_energy(levels, request.song.root, request.song.mode))
        if request.names_tempo:
            tempo.append(is_tempo(levels, request.song.bpm, request.song.meter))
    means = [float(np.mean(values)) if values else 1.0 for values in (in_key, present, absent, tempo)]
    return Scores(*means)


def measure(player: Player) -> Measured:
    """All figures: of the bundle, also in live sessions, and of the corpus itself under the same detectors."""
    return Measured(dict(figures(player)))


def figures(player: Player) -> Iterator[tuple[str, float]]:
    """The figures one after the other, as they are measured."""
    requests = held_out_requests()
    prompts = [request.prompt for request in requests]
    rolls = levels_from_latents(player.play(prompts, seed=1000))
    live_rolls = levels_from_latents(player.play(prompts, seed=1000, live=True))
    ceiling = score(requests, (render(r.song, CANVAS_FRAMES, r.song.layers) for r in requests))
    yield "prompts", len(requests)
    yield from score(requests, rolls).rounded().items()
    yield from score(requests, live_rolls).rounded("live_").items()
    yield from ceiling.rounded("ceiling_").items()
    yield from seed_figures(player, requests[:16], rolls[:16]).items()
    yield from layer_figures(player).items()
    yield from continuation_figures(player).items()
    yield from cover_figures(player).items()
    yield from instrument_figures(player).items()
    yield from finish_figures(player).items()


def seed_figures(player: Player, requests: Sequence[Request], rolls: FloatArray) -> Figures:
    """How much other seeds differ from `rolls`: the share that is another piece, and the smallest difference."""
    others = levels_from_latents(player.play([request.prompt for request in requests], seed=2000))
    differences = [difference(roll, other) for roll, other in zip(rolls, others, strict=True)]
    share = float(np.mean(np.array(differences) > SEEDS_DIFFER_BY))
    return {"seeds_differ": share, "seeds_difference_min": round(min(differences), 4)}


def layer_figures(player: Player, seeds: int = SEEDS_PER_LAYER) -> Figures:
    """Per layer, over prompts and seeds: how often it sounds where asked for, and is silent elsewhere; the worst count.

    drums_in_pads_db: what the drums' channels add to the audio of pads alone, at most, below the pads.
    """
    prompts = [prompt for prompt in LAYER_PROMPTS for _ in range(seeds)]
    latents = player.play(prompts, seed=4000)
    heard = [layers_present(levels) for levels in levels_from_latents(latents)]
    asked = [LAYER_PROMPTS[prompt] for prompt in prompts]
    found: dict[str, tuple[list[bool], list[bool]]] = {layer: ([], []) for layer in LAYERS}
    for layer, (present, absent) in found.items():
        for names, sounding in zip(asked, heard, strict=True):
            (present if layer in names else absent).append((layer in sounding) == (layer in names))
    drums = max(_drums_db(player, latents[index]) for index in range(seeds))
    return {
        "present_worst_layer": round(min(float(np.mean(present)) for present, _ in found.values()), 4),
        "absent_worst_layer": round(min(float(np.mean(absent)) for _, absent in found.values()), 4),
        "drums_in_pads_db": round(drums, 1),
    }


def _drums_db(player: Player, latents: FloatArray) -> float:
    silent = latents.copy()
    silent[:, pitch_channels("drums")] = SILENCE
    without = player.decode(silent)
    return sound.level_db(player.decode(latents) - without) - sound.level_db(without)


def continuation_figures(player: Player, count: int = NUM_LONG) -> Figures:
    """Pieces of three minutes: the share of windows in which every layer that was asked for sounds, and no other."""
    requests = [request for request in held_out_requests() if len(request.layers_asked) > 1][:count]
    pieces = [Piece(request.prompt, 3000 + i, {"seconds": LONG_S}) for i, request in enumerate(requests)]
    size = round(WINDOW_S * FRAME_RATE_HZ)
    kept, silent, in_key = [], [], []
    for request, latents in zip(requests, player.generate(pieces), strict=True):
        levels = levels_from_latents(latents)
        windows = [layers_present(levels[start : start + size]) for start in range(0, len(levels) - size + 1, size)]
        kept += [layer in sounding for sounding in windows for layer in request.layers_asked]
        silent += [layer not in sounding for sounding in windows for layer in request.layers_excluded]
        if request.names_key:
            in_key.append(in_key_energy(levels, request.song.root, request.song.mode))
    means = {"layers_kept": np.mean(kept), "layers_absent": np.mean(silent), "in_key": np.mean(in_key)}
    return {f"continued_{name}": round(float(value), 4) for name, value in means.items()}


def cover_figures(player: Player) -> Figures:
    """Covers of songs decoded to audio and encoded again, by other instruments in another mood, at strengths 1 and 0.

    ceiling: the same notes by those instruments, as the corpus writes them.
    """
    sources = [cover_source(index) for index in range(NUM_COVERS)]
    audio = [player.decode(latents_of(song)) for song, _, _ in sources]
    encoded = [player.encode(one) for one in audio]
    found: Figures = {}
    for strength in (1.0, 0.0):
        pieces = [
            Piece(prompt, 5000 + i, {"task": "cover", "structure_strength": strength}, GenerationInputs(source=latents))
            for i, ((_, _, prompt), latents) in enumerate(zip(sources, encoded, strict=True))
        ]
        covers = [player.decode(latents) for latents in player.generate(pieces)]
        found |= _similarities(audio, covers, f"cover_{strength:.0f}_")
    return found | _similarities(audio, [player.decode(latents_of(song)) for _, song, _ in sources], "cover_ceiling_")


def cover_source(index: int) -> tuple[Song, Song, str]:
    """A song with chords, drums and more, the same by other instruments, and a prompt that names those and a mood."""
    rng = np.random.default_rng([HELD_OUT_SEED, 1, index])
    song = draw_song(rng)
    others = frozenset(
        str(layer) for layer in rng.choice(("arp", "bass", "melody"), int(rng.integers(1, 4)), replace=False)
    )
    song = replace(song, layers=frozenset({"pad", "drums"}) | others, section=None)
    other = replace(song, instruments=draw_instruments(rng, song.genre))
    named = [_player_words(layer, other.instruments[layer]) for layer in LAYERS if layer in song.layers]
    return song, other, f"{_COVER_MOODS[index % len(_COVER_MOODS)]} {', '.join(named)}"


def _player_words(layer: str, instrument: str) -> str:
    """An instrument in a layer, in words."""
    return f"{instrument} {_LAYER_WORDS[layer]}"


def latents_of(song: Song) -> FloatArray:
    """A canvas of a song's layers, as the corpus writes it."""
    return latents_from_levels(render(song, CANVAS_FRAMES, song.layers))


def _similarities(audio: Sequence[FloatArray], others: Sequence[FloatArray], prefix: str) -> Figures:
    pairs = list(zip(audio, others, strict=True))
    return {
        f"{prefix}chroma": round(float(np.mean([sound.chroma_similarity(*pair) for pair in pairs])), 4),
        f"{prefix}onsets": round(float(np.mean([sound.onset_correlation(*pair) for pair in pairs])), 4),
    }


def instrument_figures(player: Player) -> Figures:
    """How often a classifier that knows the corpus hears the instrument that was asked for, alone in its layer."""
    ear = train_ear(player.decode)
    asked = [(layer, name) for layer in LAYERS for name in INSTRUMENTS[layer]] * 2
    latents = player.play([_player_words(layer, name) for layer, name in asked], seed=6000)
    heard = [ear.instrument(layer, player.decode(one)) for (layer, _), one in zip(asked, latents, strict=True)]
    written = [ear.instrument(layer, player.decode(solo(layer, name, [7, i]))) for i, (layer, name) in enumerate(asked)]
    names = [name for _, name in asked]
    return {
        "instruments": round(float(np.mean([one == name for one, name in zip(heard, names, strict=True)])), 4),
        "ceiling_instruments": round(
            float(np.mean([one == name for one, name in zip(written, names, strict=True)])), 4
        ),
    }


def finish_figures(player: Player) -> Figures:
    """Finished audio as users get it: loudness, the highest true peak, clicks at ends and where segments join."""
    requests = held_out_requests(NUM_FINISHED)
    loudness, peaks, clicks = [], [], 0
    for index, request in enumerate(requests):
        audio = player.finished_audio(Piece(request.prompt, 7000 + index, {"seconds": FINISHED_S}))
        loudness.append(loudness_lufs(block_energies(audio, SAMPLE_RATE_HZ)) or sound.QUIET_DB)
        peaks.append(sound.true_peak_db(audio))
        step = (CANVAS_FRAMES - player.pipeline.lengths.overlap_frames) * HOP_SAMPLES
        clicks += sound.num_clicks(audio, list(range(CANVAS_FRAMES * HOP_SAMPLES, len(audio), step)))
    return {
        "loudness_min_lufs": round(min(loudness), 2),
        "loudness_max_lufs": round(max(loudness), 2),
        "true_peak_dbtp": round(max(peaks), 2),
        "clicks": clicks,
    }

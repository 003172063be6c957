"""The genres: each a rule for tempo, meter, swing, harmony, layers, instruments and the patterns of its groove.

A pattern has one character for each step of a bar: 16 steps in 4/4, 12 in 3/4 and 6/8. Drums and chords: `X` always
hits, `x` in medium and dense songs, `o` softly in dense ones, `O` is an accented hat. Bass: `R` root, `F` fifth,
`T` third, `A` the scale's step to the next root, small letters in medium and dense songs. `-` holds, `.` is a rest.
"""

from dataclasses import dataclass
from typing import Final

METERS: Final = ("4/4", "3/4", "6/8")
BEATS_PER_BAR: Final[dict[str, int]] = {"4/4": 4, "3/4": 3, "6/8": 2}
STEPS_PER_BEAT: Final[dict[str, int]] = {"4/4": 4, "3/4": 4, "6/8": 6}


@dataclass(frozen=True)
class Groove:
    """Patterns of a bar; of several for bass and chords a song draws one."""

    kick: str
    snare: str
    hat: str
    bass: tuple[str, ...]
    chords: tuple[str, ...]


@dataclass(frozen=True)
class Genre:
    """A genre's rule. Its layers, instruments and tempo hold where a prompt names none."""

    bpm: tuple[int, int]
    layers: str
    modes: tuple[str, ...]
    instruments: dict[str, tuple[str, ...]]
    groove: Groove
    meter: str = "4/4"
    swing: float = 0.5  # where in the beat its second eighth is
    shuffle: float = 0.5  # where in an eighth its second sixteenth is
    chord_size: int = 3
    progressions: str = ""
    arp: tuple[str, ...] = ("0123", "0121", "0213")
    is_riff: bool = False  # whether the melody is one figure again and again

    @property
    def layer_set(self) -> frozenset[str]:
        """The layers that it has by default."""
        return frozenset(self.layers.split())


def _players(pad: str, arp: str, melody: str, bass: str, drums: str) -> dict[str, tuple[str, ...]]:
    """The instruments of each layer that a song of the genre draws from."""
    names = {"pad": pad, "arp": arp, "melody": melody, "bass": bass, "drums": drums}
    return {layer: tuple(listed.split(", ")) for layer, listed in names.items()}


# fmt: off
# The grooves of songs in another meter than their genre's.
METER_GROOVES: Final[dict[str, Groove]] = {
    "4/4": Groove(
        "X.....x.X.o.....", "....X..o....X...", "X.x.X.x.X.x.X.x.",
        ("R-----r-R---f---", "R-------R-----a-", "R---r---R---a---"), ("X-------x-------", "X---x---X---x---"),
    ),
    "3/4": Groove(
        "X.........o.", "....x...X...", "X.o.X.o.X.o.",
        ("R-------f---", "R-----------", "R---f---f---"), ("....X---X---", "X-----------", "X-------x---"),
    ),
    "6/8": Groove(
        "X.......o...", "......X...o.", "X.x.x.X.x.x.",
        ("R-----R---a-", "R---r-F---r-", "R-----F-----"), ("X-----X-----", "X---x-X---x-", "X-----------"),
    ),
}

GENRES: Final[dict[str, Genre]] = {
    "ambient": Genre(
        (60, 84), "pad arp", ("lydian", "major", "dorian", "pentatonic"),
        _players("synth, choir, strings", "bells, harp", "flute, whistle", "sub bass", "electronic kit"),
        Groove(
            "X.......x.......", "........x.......", "X.o.X.o.X.o.X.o.",
            ("R---------------",), ("X---------------",),
        ),
        chord_size=5, progressions="drone", arp=("0213", "0312"),
    ),
    "ballad": Genre(
        (60, 80), "pad bass melody drums", ("major", "minor"),
        _players(
            "piano, strings", "piano, guitar", "saxophone, piano, violin", "electric bass", "brushes, acoustic kit",
        ),
        Groove(
            "X.....o.X.......", "....X.......X...", "X.x.X.x.X.x.X.x.",
            ("R-----------a---", "R-------F-----a-"), ("X-------x-------", "X---x---x---x---"),
        ),
        chord_size=4,
    ),
    "blues": Genre(
        (70, 120), "pad bass melody drums", ("blues", "mixolydian", "minor pentatonic"),
        _players(
            "guitar, organ, piano", "guitar, piano", "guitar, saxophone", "electric bass, upright bass",
            "acoustic kit",
        ),
        Groove(
            "X...o...X.o.o...", "....X.......X..o", "X.x.X.x.X.x.X.x.",
            ("R---T---F---t---", "R-r-F-f-T-t-F-f-"), ("X-.x-...X-.x-...", "X...x-..X...x-.."),
        ),
        swing=0.667, chord_size=4, progressions="blues",
    ),
    "bossa nova": Genre(
        (110, 140), "pad bass melody drums", ("major", "dorian", "minor"),
        _players("guitar", "guitar, electric piano", "flute, saxophone, whistle", "upright bass", "brushes"),
        Groove(
            "X.....x.X.....x.", "X..x..X...x..x..", "X.x.X.x.X.x.X.x.",
            ("R-----F-F-----R-", "R-----f-F-----r-"), ("X--x--X...x--X..", "X-..x--.x-.x--x-"),
        ),
        chord_size=5, progressions="jazz",
    ),
    "chiptune": Genre(
        (120, 170), "arp bass melody drums", ("major", "minor", "mixolydian"),
        _players("synth", "synth", "synth", "synth bass", "electronic kit"),
        Groove(
            "X...x...X...x.x.", "....X.......X.o.", "X.x.X.x.X.x.X.x.",
            ("R.r.R.r.F.f.R.r.", "R.R.r.R.R.R.r.R."), ("X-..x-..X-..x-..",),
        ),
        arp=("0123", "0121", "0202"), is_riff=True,
    ),
    "cinematic": Genre(
        (64, 100), "pad arp bass melody drums", ("minor", "harmonic minor", "dorian", "lydian"),
        _players(
            "strings, brass, choir", "pizzicato, harp, piano", "violin, trumpet", "sub bass, upright bass",
            "acoustic kit",
        ),
        Groove(
            "X.....X.....X.o.", "............x.oo", "....o...o...x.x.",
            ("R---------------", "R-----r-R-------"), ("X---------------", "X-------x-------"),
        ),
        arp=("0102", "0121", "0212"),
    ),
    "classical": Genre(
        (72, 132), "pad arp melody", ("major", "minor", "harmonic minor"),
        _players("strings, piano", "piano, harp, pizzicato", "violin, flute, piano", "upright bass", "brushes"),
        Groove(
            "X.......x.......", "........x...o...", "....X.......X...",
            ("R-------F-------", "R---F---R---a---"), ("X---------------", "X-------x-------"),
        ),
        progressions="classical", arp=("0212", "0121"),
    ),
    "country": Genre(
        (96, 140), "pad bass melody drums", ("major", "mixolydian", "pentatonic"),
        _players("guitar", "guitar", "violin, guitar", "upright bass", "brushes, acoustic kit"),
        Groove(
            "X.......X.......", "....X..o....X..o", "X.x.X.x.X.x.X.x.",
            ("R-..t-..F-..a-..", "R---....F---...."), ("....X-x-....X-x-", "x-..X-..x-..X-.."),
        ),
        progressions="folk",
    ),
    "disco": Genre(
        (112, 126), "pad bass melody drums", ("minor", "dorian", "major"),
        _players("strings, electric piano", "guitar, synth", "trumpet, synth", "electric bass", "acoustic kit"),
        Groove(
            "X...X...X...X...", "....X.......X..o", "x.O.x.O.x.O.x.O.",
            ("R.r.F.r.R.r.F.r.", "R-r-r-F-R-r-F-a-"), ("X-------..x-x-..", "..X-..X-..X-..X-"),
        ),
        chord_size=4,
    ),
    "drum and bass": Genre(
        (160, 178), "pad bass arp drums", ("minor", "dorian", "phrygian"),
        _players("synth, strings", "electric piano, synth", "synth", "sub bass, synth bass", "electronic kit"),
        Groove(
            "X.........X.....", "....X..o.o..X..o", "X.x.X.x.X.x.X.x.",
            ("R-----r-..F-----", "R---------r-a---"), ("X---------------", "X-----x---------"),
        ),
        chord_size=5, progressions="drone",
    ),
    "dubstep": Genre(
        (136, 146), "pad bass arp drums", ("minor", "phrygian", "harmonic minor"),
        _players("synth, strings, choir", "synth, bells", "synth", "synth bass, sub bass", "electronic kit"),
        Groove(
            "X.........x...o.", "........X.....o.", "X.x.X.xxX.x.X.xx",
            ("R--r--R-r--r--R-", "R---r-r-R-----r-"), ("X---------------", "X-------........"),
        ),
        progressions="drone", arp=("0010", "0102"), is_riff=True,
    ),
    "folk": Genre(
        (84, 124), "pad bass melody", ("major", "dorian", "mixolydian", "pentatonic"),
        _players("guitar", "guitar, harp", "flute, violin, whistle", "upright bass", "brushes"),
        Groove(
            "X.......X.......", "....x.......x...", "....X...x...X...",
            ("R-------F-------", "R-----r-F---a---"), ("X---x-x-..x-X-x-", "X---x---X-x-x-x-"),
        ),
        progressions="folk", arp=("0213", "0321", "0121"),
    ),
    "funk": Genre(
        (92, 116), "pad bass melody drums", ("dorian", "mixolydian", "minor pentatonic"),
        _players("guitar, electric piano, organ", "guitar", "trumpet, saxophone", "electric bass", "acoustic kit"),
        Groove(
            "X..x..X...x..x..", "....X..o.o..X..o", "X.xxX.xxX.xOX.xx",
            ("R..r..F...r..f.a", "R..rr..r..F.f.a."), ("..x...Xx..x..X..", "X..x..x.....X.x."),
        ),
        shuffle=0.56, chord_size=5, progressions="drone", is_riff=True,
    ),
    "hip hop": Genre(
        (80, 100), "pad bass arp drums", ("minor", "dorian", "phrygian"),
        _players(
            "electric piano, piano, strings", "bells, piano, guitar", "synth, flute", "sub bass, electric bass",
            "electronic kit, lo-fi kit",
        ),
        Groove(
            "X..x...x..X..o..", "....X.......X..o", "X.x.X.x.X.x.X.xx",
            ("R--r------R-----", "R------r--F---a-"), ("X---------------", "X-----x-........"),
        ),
        shuffle=0.6, chord_size=4,
    ),
    "house": Genre(
        (118, 128), "pad bass arp drums", ("minor", "dorian", "major"),
        _players("piano, organ, synth", "synth, bells", "synth, saxophone", "synth bass", "electronic kit"),
        Groove(
            "X...X...X...X...", "....X.......X...", "x.O.x.O.x.O.x.O.",
            ("..R-..r-..R-..F-", "R..r..R...r..R.."), ("X--.x--.x--.x-..", "..X-..x-..X-..x-"),
        ),
        chord_size=4,
    ),
    "jazz": Genre(
        (100, 176), "pad bass melody drums", ("major", "dorian", "minor"),
        _players(
            "piano, guitar", "guitar, piano", "saxophone, trumpet, piano", "upright bass", "brushes, acoustic kit",
        ),
        Groove(
            "X...o...o...o...", "......o....ox...", "X...X.x.X...X.x.",
            ("R---T---F---A---", "R---F---T---A---"), ("X--...x-........", "......X-..x--...", "..X-......x-...."),
        ),
        swing=0.667, chord_size=5, progressions="jazz",
    ),
    "latin": Genre(
        (96, 124), "pad arp bass drums", ("minor", "harmonic minor", "major", "dorian"),
        _players(
            "guitar, brass, piano", "piano, marimba", "trumpet, flute", "upright bass, electric bass", "acoustic kit",
        ),
        Groove(
            "X.....x.X.....x.", "...X..X.....X...", "X.xxX.xxX.xxX.xx",
            ("R.....F-....F-..", "R-----F-....R-r-"), ("..X-..x-..X-..x-", "X-.x-.x-..x-x-.."),
        ),
        chord_size=4, arp=("0202", "0313", "0213"),
    ),
    "lo-fi": Genre(
        (68, 88), "pad bass melody drums", ("major", "dorian", "minor"),
        _players(
            "electric piano, guitar, piano", "electric piano, bells, guitar", "piano, bells, saxophone",
            "sub bass, electric bass", "lo-fi kit",
        ),
        Groove(
            "X......xX.o.....", "....X.......X..o", "X.x.X.x.X.x.X.x.",
            ("R-----r-F-----a-", "R-------..F-----"), ("X-----------x---", "X-----x---------"),
        ),
        swing=0.58, chord_size=5, progressions="jazz",
    ),
    "lullaby": Genre(
        (60, 84), "pad arp melody", ("major", "pentatonic"),
        _players("strings, choir, piano", "bells, harp", "bells, whistle, flute", "upright bass", "brushes"),
        METER_GROOVES["6/8"],
        meter="6/8", progressions="folk", arp=("0121", "012"),
    ),
    "march": Genre(
        (104, 124), "pad bass melody drums", ("major", "minor"),
        _players("brass", "pizzicato", "trumpet, flute", "upright bass", "acoustic kit"),
        Groove(
            "X.......X.......", "X..xX.x.X..xX.xx", "....X.......X...",
            ("R-......F-......", "R-..r-..F-..r-.."), ("....X-......X-..", "X-..x-..X-..x-x-"),
        ),
        progressions="classical",
    ),
    "metal": Genre(
        (124, 176), "pad bass melody drums", ("minor", "phrygian", "harmonic minor"),
        _players("guitar", "guitar", "guitar", "electric bass", "acoustic kit"),
        Groove(
            "X.xxX.xxX.xxX.xx", "....X.......X..o", "X...X...X...X...",
            ("R-rrR-rrR-rrR-rr", "R-r-R-rrR-r-f-a-"), ("X-xxX-xxX-xxX-xx", "X---X-x-X---X-x-"),
        ),
        chord_size=2, progressions="drone", is_riff=True,
    ),
    "pop": Genre(
        (92, 128), "pad bass melody drums", ("major", "minor", "mixolydian"),
        _players(
            "piano, synth, guitar", "guitar, synth, piano", "synth, piano, whistle", "electric bass, synth bass",
            "acoustic kit, electronic kit",
        ),
        METER_GROOVES["4/4"],
    ),
    "reggae": Genre(
        (68, 92), "pad bass melody drums", ("major", "minor", "dorian"),
        _players("guitar, organ", "guitar", "trumpet, saxophone", "electric bass", "acoustic kit"),
        Groove(
            "........X.......", "........X......o", "x.x.X.x.x.x.X.x.",
            ("..R-r-..F---r-..", "R-..r-F-....a-r-"), ("..X...X...X...X.", "....X.......X..."),
        ),
        swing=0.56,
    ),
    "rock": Genre(
        (100, 150), "pad bass melody drums", ("minor", "mixolydian", "minor pentatonic", "major"),
        _players("guitar, organ", "guitar", "guitar", "electric bass", "acoustic kit"),
        Groove(
            "X.....x.X.x...o.", "....X.......X..o", "X.x.X.x.X.x.X.x.",
            ("R-r-r-r-R-r-r-a-", "R---r-r-R-r-f-a-"), ("X-x-x-x-X-x-x-x-", "X---..x-X---x-x-"),
        ),
        chord_size=2, is_riff=True,
    ),
    "soul": Genre(
        (72, 108), "pad bass melody drums", ("major", "dorian", "minor"),
        _players(
            "organ, electric piano", "electric piano, guitar", "saxophone, trumpet", "electric bass", "acoustic kit",
        ),
        Groove(
            "X.....xxX..o....", "....X..o....X..o", "X.x.X.x.X.x.X.x.",
            ("R-----r-F--r--a-", "R--r--F-..r-T-a-"), ("X---x---X-----x-", "X-----x-..x-----"),
        ),
        swing=0.58, chord_size=5,
    ),
    "synthwave": Genre(
        (84, 116), "pad arp bass melody drums", ("minor", "dorian", "major"),
        _players("synth", "synth", "synth", "synth bass", "electronic kit"),
        Groove(
            "X...X...X...X...", "....X.......X...", "X.x.X.x.X.x.X.x.",
            ("R-r-R-r-R-r-R-r-", "R.rrR.rrR.rrR.rr"), ("X---------------",),
        ),
        arp=("0121", "0123", "0321"),
    ),
    "techno": Genre(
        (124, 144), "pad bass arp drums", ("minor", "phrygian", "minor pentatonic"),
        _players("synth", "synth", "synth", "synth bass, sub bass", "electronic kit"),
        Groove(
            "X...X...X...X...", "....o.......X..o", "..O...O...O...Ox",
            ("R-..R-r-R-..R-r-", "r-R-r-R-r-R-r-R-"), ("..X-......x-....", "X---------------"),
        ),
        progressions="drone", arp=("0000", "0010", "0102"), is_riff=True,
    ),
    "trance": Genre(
        (130, 142), "pad arp bass melody drums", ("minor", "harmonic minor"),
        _players("synth, strings", "synth", "synth", "synth bass", "electronic kit"),
        Groove(
            "X...X...X...X...", "....X.......X...", "..O...O...O...O.",
            ("..R-..R-..R-..R-", "..Rr..Rr..Rr..Rr"), ("X---------------", "X-.x-.x-.x-.x-x-"),
        ),
        arp=("0123", "0321", "0213"), is_riff=True,
    ),
    "trap": Genre(
        (66, 80), "pad bass arp drums", ("minor", "phrygian", "harmonic minor"),
        _players("choir, strings, synth", "bells, piano", "flute, bells", "sub bass", "electronic kit"),
        Groove(
            "X.....x...x..o..", "........X.......", "X.xxX.x.X.x.Xxxx",
            ("R-----r---F-----", "R---------r---a-"), ("X---------------",),
        ),
    ),
    "waltz": Genre(
        (84, 168), "pad bass melody", ("major", "minor", "harmonic minor"),
        _players("strings, piano", "harp, piano", "violin, flute, piano", "upright bass", "brushes"),
        Groove(
            "X...........", "....o...x...", "....X...X.o.",
            ("R-......F-..", "R---........"), ("....X-..X-..", "....X---X---"),
        ),
        meter="3/4", progressions="classical", arp=("0123", "0212"),
    ),
}
# fmt: on

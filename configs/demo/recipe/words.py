"""What words mean, in English, German, French, Spanish and Italian, without accents; keys and numbers have rules."""

from typing import Final

# Words and phrases, separated by commas; a hyphen stands for a space, a hyphen or nothing.
WORDS: Final[dict[str, str]] = {
    "layer:pad": "pad, pads, chord, chords, harmonies, flache, flachen, akkord, akkorde, accord, accords, nappe,"
    " nappes, acorde, acordes, chordal, textures, swells,"
    " stabs, accordi",
    "layer:arp": "arp, arps, arpeggio, arpeggios, arpeggiated, arpeggiator, arpeggien, arpege, arpeges, arpegio,"
    " arpegios, pluck, plucks, plucked, plucky, broken-chords, sequence, sequencer, ostinato,"
    " arpeggiating",
    "layer:bass": "bass, basses, bass-line, bass-lines, basse, bajo, bajos, bassy, basso, bassi",
    "layer:melody": "melody, melodies, melodic, lead, leads, tune, topline, theme, melodie, melodien, melodia,"
    " melodias, riff, riffs, solos, thema",
    "layer:drums": "drum, drums, drumming, beat, beats, drumbeat, kick, kicks, snare, snares, hat, hats, hi-hat,"
    " hi-hats, high-hats, cymbals, percussion, groove, schlagzeug, trommel, trommeln, batterie, percussions, bateria,"
    " percusion, tambores, drumline, cymbal, toms, tambourine, shaker, bongos, congas, claps, clap, handclaps,"
    " timpani, percussive, double-kick, four-on-the-floor, beatbox, becken, batteria, tamburi, percussioni",
    "mode:major": "major, maj, ionian, dur, majeur, mayor",
    "mode:minor": "minor, min, aeolian, moll, mineur, menor",
    "mode:dorian": "dorian, dorisch, dorien, dorico",
    "mode:mixolydian": "mixolydian, mixolydisch, mixolydien, mixolidio",
    "mode:lydian": "lydian, lydisch, lydien, lidio",
    "mode:phrygian": "phrygian, phrygisch, phrygien, frigio",
    "mode:harmonic minor": "harmonic-minor, mineur-harmonique, menor-armonica, harmonisches-moll",
    "mode:pentatonic": "pentatonic, major-pentatonic, pentatonisch, pentatonique, pentatonica",
    "mode:minor pentatonic": "minor-pentatonic, moll-pentatonik, mineur-pentatonique, pentatonica-menor",
    "mode:blues": "blues-scale, blues-tonleiter, gamme-blues, escala-de-blues",
    "meter:4/4": "four-four, common-time, viervierteltakt",
    "meter:3/4": "three-four, waltz-time, triple-time, dreivierteltakt, trois-temps",
    "meter:6/8": "six-eight, sechsachteltakt, compound-time",
    "tempo:very slow": "very-slow, largo, grave, sehr-langsam, tres-lent, muy-lento, muy-lenta",
    "tempo:slow": "slow, slowly, slower, adagio, lento, lenta, down-tempo, langsam, langsame, langsamer, langsames,"
    " lent, lente, lentement, despacio",
    "tempo:medium": "medium, moderate, moderato, mid-tempo, medium-tempo, andante, walking, mittelschnell, modere,"
    " moderado",
    "tempo:fast": "fast, faster, quick, rapid, up-tempo, allegro, brisk, speedy, schnell, schnelle, schneller,"
    " schnelles, rapide, vite, rapido, rapida",
    "tempo:very fast": "very-fast, presto, prestissimo, sehr-schnell, tres-rapide, muy-rapido, muy-rapida, breakneck",
    "section:intro": "intro, introduction, opening, introduccion",
    "section:verse": "verse, verses, strophe, couplet, estrofa",
    "section:chorus": "chorus, refrain, estribillo, hook, drop",
    "section:break": "break, breakdown, interlude, pause",
    "section:build": "build, build-up, riser, rising, aufbau, montee, subida",
    "section:outro": "outro, ending, coda, schluss, fin, final",
    "mood:dark": "dark, gloomy, sombre, somber, moody, brooding, sinister, dunkel, dunkle, dunkler, dunkles, dunklen,"
    " dunklem, duster, dusteres, scuro, scura, cupo, cupa, sombres, oscuros, oscuras,"
    " obscur, oscuro, oscura, ominous, haunting, gothic, noir, evil, spooky, midnight, night",
    "mood:bright": "bright, sunny, uplifting, hopeful, shiny, brilliant, helle, heller, helles, hellen, hellem, sonnig,"
    " lumineux, lumineuse, brillante, brillantes, brillant, luminoso, luminosa, luminosi",
    "mood:sparse": "sparse, minimal, minimalist, minimalistic, simple, spacious, sparsam, sparsame, sparsamer,"
    " sparsames, sparsamem, einfach, minimaliste, sencillo, sencilla, scarno, scarna",
    "mood:dense": "dense, busy, rich, full, complex, thick, dicht, dichte, dichter, dichtes, dichtem, voll, riche,"
    " denso, densa, fitto, fitta",
    "mood:soft": "soft, softly, quiet, gentle, gently, delicate, tender, leise, leises, leisen, leisem, sanft,"
    " sanfte, sanfter, sanftes, sanften, sanftem, weich, weiche, weiches, weicher, weichen, weichem, zart, zarte,"
    " zartes, zarter, zarten, zartem, doux, douce, doucement, douces, suave, suaves, dolce, dolci, delicato, delicata",
    "mood:loud": "loud, powerful, heavy, strong, massive, big, laut, laute, lautes, lauten, lautem, kraftig,"
    " kraftige, kraftiger, kraftiges, kraftigen, kraftigem, fort, forte, forts, fortes, forti, puissant, puissante,"
    " fuerte, fuertes, potente, potentes, potenti, banger",
    "mood:calm": "calm, relaxing, relaxed, peaceful, chill, chilled, chillout, mellow, serene, meditative, soothing,"
    " ruhig, ruhige, ruhiger, ruhiges, entspannt, entspannend, calme, paisible, tranquille, tranquilo, tranquila,"
    " relajante, sleep, sleeping, sleepy, tranquil, zen, spa, yoga, lazy",
    "mood:energetic": "energetic, energy, driving, intense, upbeat, lively, energisch, treibend, energique,"
    " entrainant, energico, energica, hype, party, workout",
    "mood:happy": "happy, joyful, cheerful, merry, frohlich, frohliche, heiter, lustig, joyeux, joyeuse, gai, feliz,"
    " alegre, fun, feel-good, carefree, summer",
    "mood:sad": "sad, melancholic, melancholy, sorrowful, mournful, lonely, traurig, traurige, trauriger, trauriges,"
    " melancholisch, triste, tristes, melancolique, melancolico, melancolica, heartbreak, heartbroken, sorrow,"
    " depressing",
    "mood:dreamy": "dreamy, dream, ethereal, floating, hazy, airy, spacey, vertraumt, schwebend, reveur, reveuse,"
    " sonador, space, cosmic, dreamlike",
    "mood:warm": "warm, cozy, cosy, smooth, velvety, lush, warme, warmer, warmes, chaleureux, chaleureuse, calido,"
    " calida",
    "mood:tense": "tense, dramatic, suspense, suspenseful, scary, horror, eerie, creepy, spannend, dramatisch, tendu,"
    " dramatique, tenso, dramatico, thriller, chase",
    "mood:mysterious": "mysterious, mystical, mystic, magical, enigmatic, geheimnisvoll, mysterieux, misterioso",
    "mood:epic": "epic, heroic, majestic, triumphant, anthemic, grand, episch, epische, epique, epico, epica, anthem,"
    " battle, boss-battle, adventure, hero, huge",
    "mood:aggressive": "aggressive, angry, furious, brutal, hard, wild, aggressiv, agressif, agresivo, agresiva,"
    " distorted, hardcore, raw",
    "mood:playful": "playful, funny, quirky, bouncy, cute, verspielt, ludique, jugueton",
    "mood:romantic": "romantic, love, sentimental, nostalgic, romantisch, romantique, romantico, romantica, wedding",
    "mood:groovy": "groovy, syncopated, grooving, synkopiert",
    "mood:swinging": "swinging, swung, shuffle, shuffled",
    "mood:repetitive": "repetitive, hypnotic, looping, loop, hypnotisch, hypnotique, hipnotico",
    "mood:staccato": "staccato, choppy, short-notes, crisp",
    "mood:legato": "legato, sustained, flowing, long-notes",
    "instrument:piano": "piano, pianos, grand-piano, upright-piano, klavier, flugel, pianist, honky-tonk, pianoforte",
    "instrument:electric piano": "electric-piano, e-piano, rhodes, wurlitzer, keys, keyboard, keyboards,"
    " piano-electrique, piano-electrico",
    "instrument:organ": "organ, organs, hammond, church-organ, accordion, harmonium, orgel, akkordeon, orgue,"
    " accordeon, organo, acordeon, pipe-organ, bandoneon, concertina",
    "instrument:strings": "strings, string, string-section, string-quartet, orchestra, cello, cellos, viola,"
    " streicher, orchester, cordes, orchestre, violoncelle, cuerdas, orquesta, violonchelo, orchestral-strings,"
    " string-orchestra, archi",
    "instrument:choir": "choir, choirs, choral, voices, chor, choeur, coro, chant, chants, chanting",
    "instrument:synth": "synth, synths, synthesizer, synthesizers, supersaw, synthie, synthetiseur, sintetizador",
    "instrument:brass": "brass, brass-section, horn, horns, french-horn, trombone, tuba, blaser, blechblaser, posaune,"
    " cuivres, metales, brass-band, horn-section",
    "instrument:guitar": "guitar, guitars, acoustic-guitar, electric-guitar, ukulele, banjo, mandolin, gitarre,"
    " gitarren, e-gitarre, guitare, guitares, guitarra, guitarras, strumming, strummed, spanish-guitar, nylon-guitar,"
    " distorted-guitar, distorted-guitars, guitarist, lute, lutes, chitarra, chitarre",
    "instrument:harp": "harp, harps, harfe, harpe, arpa, zither, koto",
    "instrument:bells": "bell, bells, glockenspiel, chimes, celesta, glocke, glocken, cloche,"
    " cloches, campana, campanas, tubular-bells, wind-chimes, campane",
    "instrument:marimba": "marimba, xylophone, vibraphone, kalimba, mallets, xylophon, vibraphon, xilofono",
    "instrument:pizzicato": "pizzicato, pizz, pizzicati, plucked-strings",
    "instrument:flute": "flute, flutes, recorder, pan-flute, piccolo, clarinet, oboe, woodwind, flote, blockflote,"
    " klarinette, clarinette, flauta, flautas, clarinete, flauto, flauti",
    "instrument:violin": "violin, violins, fiddle, violine, geige, geigen, violon, violons, violino, violini",
    "instrument:trumpet": "trumpet, trumpets, cornet, flugelhorn, trompete, trompette, trompeta, tromba, trombe",
    "instrument:saxophone": "saxophone, sax, saxophon, saxo, saxofon",
    "instrument:whistle": "whistle, whistling, whistled, tin-whistle, ocarina, pfeifen, sifflet, silbido",
    "instrument:electric bass": "electric-bass, bass-guitar, slap-bass, e-bass, bassgitarre, basse-electrique,"
    " bajo-electrico",
    "instrument:upright bass": "upright-bass, double-bass, contrabass, acoustic-bass, kontrabass, contrebasse,"
    " contrabajo, walking-bass",
    "instrument:synth bass": "synth-bass, bass-synth, acid, acid-bass",
    "instrument:sub bass": "sub-bass, sub, 808-bass, 808s",
    "instrument:acoustic kit": "acoustic-kit, acoustic-drums, live-drums, drum-kit, drum-set",
    "instrument:electronic kit": "electronic-kit, electronic-drums, drum-machine, 808, 909, drumcomputer,"
    " boite-a-rythmes, caja-de-ritmos",
    "instrument:brushes": "brushes, brushed-drums, jazz-drums, jazzbesen, balais, escobillas",
    "instrument:lo-fi kit": "lo-fi-kit, lo-fi-drums, dusty-drums",
    "genre:ambient": "ambient, drone, soundscape, atmospheric, new-age, meditation, ambience, sleep-music, healing",
    "genre:ballad": "ballad, ballads, ballade, balada",
    "genre:blues": "blues, bluesy",
    "genre:bossa nova": "bossa-nova, bossa, samba",
    "genre:chiptune": "chiptune, 8-bit, video-game, arcade, videospiel, jeu-video, videojuego, nes, game-boy,"
    " nintendo, video-game-music",
    "genre:cinematic": "cinematic, film-score, film-music, soundtrack, orchestral, filmmusik, orchestermusik,"
    " movie, film, score, orchestral-score",
    "genre:classical": "classical, baroque, chamber-music, klassik, klassisch, klassische, classique, clasica, sonata,"
    " symphony, symphonic, concerto, nocturne, prelude, minuet, barock, klassische-musik",
    "genre:country": "country, western, americana, bluegrass",
    "genre:disco": "disco, nu-disco",
    "genre:drum and bass": "drum-and-bass, drum-n-bass, drum-&-bass, dnb, d&b, jungle, breakbeat, liquid, neurofunk,"
    " breakbeats",
    "genre:dubstep": "dubstep, brostep",
    "genre:folk": "folk, folky, celtic, irish, acoustic, medieval, volksmusik, akustisch, acoustique, acustico",
    "genre:funk": "funk, funky",
    "genre:hip hop": "hip-hop, rap, boom-bap, rapper",
    "genre:house": "house, deep-house, tech-house, club, dance, edm, dance-music, progressive-house, tropical-house,"
    " uk-garage",
    "genre:jazz": "jazz, jazzy, swing, bebop, big-band, smooth-jazz, jazz-trio, ragtime, dixieland",
    "genre:latin": "latin, salsa, mambo, cumbia, merengue, rumba, latino, bachata, mariachi, cha-cha",
    "genre:lo-fi": "lo-fi, lo-fi-hip-hop, chillhop, study-beats, lo-fi-beats, study-music",
    "genre:lullaby": "lullaby, cradle-song, schlaflied, wiegenlied, berceuse, cancion-de-cuna, bedtime",
    "genre:march": "march, marching, parade, marsch, marche, marcha",
    "genre:metal": "metal, heavy-metal, death-metal, thrash, thrash-metal, metalcore, black-metal",
    "genre:pop": "pop, indie, schlager, k-pop, dance-pop, indie-pop, britpop",
    "genre:reggae": "reggae, dub, ska, dancehall",
    "genre:rock": "rock, hard-rock, punk, grunge, rockig, punk-rock, indie-rock, alternative, post-rock, surf,"
    " rock-and-roll, rock-n-roll, shoegaze",
    "genre:soul": "soul, soulful, neo-soul, rnb, r&b, motown, gospel",
    "genre:synthwave": "synthwave, retrowave, vaporwave, synth-pop, new-wave, eighties, 80s, outrun, darksynth, 1980s",
    "genre:techno": "techno, electro, industrial, electronic, electronica, elektronisch, electronique, rave,"
    " hardstyle, ebm, minimal-techno",
    "genre:trance": "trance, psytrance, eurodance, goa, eurobeat, uplifting-trance",
    "genre:trap": "trap, drill, phonk, cloud-rap",
    "genre:waltz": "waltz, waltzes, walzer, valse, vals",
    "only": "only, solo, alone, unaccompanied, nothing-but, just, nur, allein, ausschliesslich, seulement, seul,"
    " seule, uniquement, solamente, solo-de",
}

FILLERS: Final = (
    "a an and as at but by for from i in is it its key like mode music my of on or our piece scale some song songs"
    " sound sounds style tempo that the this to track very vibe vibes with your"
    " aber das dem den der die ein eine einem einen einer im ist mit musik stuck takt und von zu"
    " au avec mais ce dans de des du en est et la le les morceau musique piste pour sur un une"
    " al con pero cancion del el es las los musica para por su tema unos y"
    " di il lo gli una uno ma ed canzone"
    " um over under against while plus sobre sous sopra sotto uber unter"
)

# What means several words.
COMPOUNDS: Final[dict[str, str]] = {
    "music[ -]?box|spieluhr|boite[ -]a[ -]musique|caja[ -]de[ -]musica": "bells, arpeggio and melody",
    "(?:drum|beat)(?:[ -]?less|[ -]free)": "no drums",
    "(?:finger[ -]?)?pick(?:ing|ed)|finger[ -]?style": "arpeggios and melody",
}

# What is not in the vocabulary, and what is nearest to it there: it is played as that, and counts as not understood.
NEAREST: Final[dict[str, str]] = {
    "afrobeats?": "funk",
    "bagpipes?": "whistle",
    "dembow": "latin beat",
    "emo": "rock",
    "flamenco": "latin guitar",
    "fugues?": "classical",
    "grime": "trap",
    "gregorian": "slow choir",
    "handpans?": "marimba",
    "harmonica": "whistle",
    "opera": "classical",
    "polka": "march",
    "reggaeton": "latin beat 94 bpm",
    "sitar": "guitar",
    "steel[ -]?(?:drums?|pans?)": "marimba",
    "tango": "latin",
    "theremin": "whistle",
    "trailers?": "cinematic dense",
    "wobble": "synth bass",
}

NEGATIONS: Final = (
    "no|without|w/o|minus|not|never|except(?: for)?|excluding|leave out|skip|don'?t (?:use|add|play|want)|ohne|"
    "kein(?:e[nmrs]?)?|nicht|ausser|sans|pas(?: de)?|aucune?|sauf|sin|ningun[ao]?|nada de|excepto|senza|nessun[ao]?"
)
ARTICLES: Final = "any|a|the|de|la|le|el|una?|une?|den|die|das"

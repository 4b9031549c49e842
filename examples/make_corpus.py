"""Write ``corpus.jsonl``, the sample corpus, from ``source/sentences.tsv`` and the patterns below.

    python examples/make_corpus.py

The sentences were written for embedkit; the patterns add volume, with the announcements and reports that are common
in real corpora. The result is deterministic, and a document keeps its id when others are added at the end of their
language and topic. Everything here is under the license of the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PER_PATTERN = 50

# language -> cities, days, weather, and the patterns for weather, trains and opening hours
LANGUAGES: dict[str, tuple[str, str, str, str, str, str]] = {
    "en": (
        "London|Paris|Rome|Berlin|Madrid|Athens|Moscow|Cairo|Delhi|Beijing|Tokyo|Seoul|Lisbon|Vienna",
        "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
        "sunny spells|light rain|heavy snow|dense fog|thunderstorms|strong winds|clear skies",
        "Weather for {city} on {day}: {weather}, with a high of {n} degrees.",
        "The train from {city} to {other} leaves at {hour}:{minute} from platform {k}.",
        "The city museum of {city} opens at {k} in the morning and is closed on {day}.",
    ),
    "de": (
        "London|Paris|Rom|Berlin|Madrid|Athen|Moskau|Kairo|Delhi|Peking|Tokio|Seoul|Lissabon|Wien",
        "Montag|Dienstag|Mittwoch|Donnerstag|Freitag|Samstag|Sonntag",
        "sonnig|leichter Regen|starker Schneefall|dichter Nebel|Gewitter|stürmischer Wind|klarer Himmel",
        "Wetter für {city} am {day}: {weather}, Höchstwerte um {n} Grad.",
        "Der Zug von {city} nach {other} fährt um {hour}:{minute} Uhr von Gleis {k} ab.",
        "Das Stadtmuseum in {city} öffnet um {k} Uhr und ist am {day} geschlossen.",
    ),
    "fr": (
        "Londres|Paris|Rome|Berlin|Madrid|Athènes|Moscou|Delhi|Pékin|Tokyo|Séoul|Lisbonne|Vienne|Genève",
        "lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche",
        "ensoleillé|pluie légère|fortes chutes de neige|brouillard épais|orages|vent fort|ciel dégagé",
        "Météo à {city} {day} : {weather}, {n} degrés au plus chaud.",
        "Le train {city} – {other} part à {hour} h {minute}, voie {k}.",
        "À {city}, le musée municipal ouvre à {k} heures et ferme le {day}.",
    ),
    "es": (
        "Londres|París|Roma|Berlín|Madrid|Atenas|Moscú|Nueva Delhi|Pekín|Tokio|Seúl|Lisboa|Viena|Sevilla",
        "lunes|martes|miércoles|jueves|viernes|sábado|domingo",
        "soleado|lluvia débil|fuertes nevadas|niebla densa|tormentas|viento fuerte|cielo despejado",
        "El tiempo en {city} el {day}: {weather}, con máximas de {n} grados.",
        "El tren de {city} a {other} sale a las {hour}:{minute} de la vía {k}.",
        "En {city}, el museo municipal abre a las {k} y cierra el {day}.",
    ),
    "it": (
        "Londra|Parigi|Roma|Berlino|Madrid|Atene|Mosca|Delhi|Pechino|Tokyo|Seul|Lisbona|Vienna|Torino",
        "lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica",
        "soleggiato|pioggia leggera|forti nevicate|nebbia fitta|temporali|vento forte|cielo sereno",
        "Il tempo a {city}, {day}: {weather}, massima di {n} gradi.",
        "Il treno da {city} a {other} parte alle {hour}:{minute} dal binario {k}.",
        "A {city} il museo civico apre alle {k}; giorno di chiusura: {day}.",
    ),
    "pt": (
        "Londres|Paris|Roma|Berlim|Madrid|Atenas|Moscovo|Nova Deli|Pequim|Tóquio|Seul|Lisboa|Viena|Coimbra",
        "segunda-feira|terça-feira|quarta-feira|quinta-feira|sexta-feira|sábado|domingo",
        "sol|chuva fraca|neve forte|nevoeiro denso|trovoadas|vento forte|céu limpo",
        "Tempo em {city}, {day}: {weather}, máxima de {n} graus.",
        "O comboio de {city} para {other} parte às {hour}:{minute} da linha {k}.",
        "Em {city} o museu municipal abre às {k} horas; dia de descanso: {day}.",
    ),
    "ru": (
        "Лондон|Париж|Рим|Берлин|Мадрид|Афины|Москва|Каир|Дели|Пекин|Токио|Сеул|Лиссабон|Вена",
        "понедельник|вторник|среда|четверг|пятница|суббота|воскресенье",
        "солнечно|небольшой дождь|сильный снег|густой туман|гроза|сильный ветер|ясно",
        "Погода, {city}, {day}: {weather}, днём до {n} градусов.",
        "Поезд {city} — {other} отправляется в {hour}:{minute} с платформы {k}.",
        "Городской музей ({city}) открывается в {k} часов утра, выходной день — {day}.",
    ),
    "el": (
        "Λονδίνο|Παρίσι|Ρώμη|Βερολίνο|Μαδρίτη|Αθήνα|Μόσχα|Κάιρο|Δελχί|Πεκίνο|Τόκιο|Σεούλ|Λισαβόνα|Βιέννη",
        "Δευτέρα|Τρίτη|Τετάρτη|Πέμπτη|Παρασκευή|Σάββατο|Κυριακή",
        "ηλιοφάνεια|ασθενής βροχή|ισχυρή χιονόπτωση|πυκνή ομίχλη|καταιγίδες|ισχυροί άνεμοι|αίθριος",
        "Καιρός, {city}, {day}: {weather}, έως {n} βαθμοί.",
        "Τρένο {city} – {other}: αναχώρηση στις {hour}:{minute} από την αποβάθρα {k}.",
        "Δημοτικό μουσείο ({city}): ανοίγει στις {k} το πρωί, κλειστό: {day}.",
    ),
    "ar": (
        "لندن|باريس|روما|برلين|مدريد|أثينا|موسكو|القاهرة|دلهي|بكين|طوكيو|سيول|لشبونة|فيينا",
        "الاثنين|الثلاثاء|الأربعاء|الخميس|الجمعة|السبت|الأحد",
        "مشمس|مطر خفيف|ثلوج كثيفة|ضباب كثيف|عواصف رعدية|رياح قوية|سماء صافية",
        "الطقس في {city} يوم {day}: {weather}، والحرارة العظمى {n} درجة.",
        "يغادر القطار من {city} إلى {other} في الساعة {hour}:{minute} من الرصيف {k}.",
        "يفتح متحف المدينة في {city} في الساعة {k} صباحا ويغلق يوم {day}.",
    ),
    "hi": (
        "लंदन|पेरिस|रोम|बर्लिन|मैड्रिड|एथेंस|मॉस्को|काहिरा|दिल्ली|बीजिंग|टोक्यो|सियोल|लिस्बन|वियना",
        "सोमवार|मंगलवार|बुधवार|गुरुवार|शुक्रवार|शनिवार|रविवार",
        "धूप|हल्की बारिश|भारी बर्फ़बारी|घना कोहरा|गरज के साथ बारिश|तेज़ हवा|साफ़ आसमान",
        "{city} का मौसम, {day}: {weather}, अधिकतम तापमान {n} डिग्री।",
        "{city} से {other} की ट्रेन {hour}:{minute} बजे प्लेटफ़ॉर्म {k} से चलती है।",
        "{city} का नगर संग्रहालय सुबह {k} बजे खुलता है और {day} को बंद रहता है।",
    ),
    "zh": (
        "伦敦|巴黎|罗马|柏林|马德里|雅典|莫斯科|开罗|德里|北京|东京|首尔|里斯本|维也纳",
        "星期一|星期二|星期三|星期四|星期五|星期六|星期日",
        "晴间多云|小雨|大雪|浓雾|雷阵雨|大风|晴朗",
        "{city}{day}天气：{weather}，最高气温{n}度。",
        "从{city}开往{other}的列车{hour}:{minute}从{k}号站台发车。",
        "{city}市博物馆上午{k}点开门，{day}闭馆。",
    ),
    "ja": (
        "ロンドン|パリ|ローマ|ベルリン|マドリード|アテネ|モスクワ|カイロ|デリー|北京|東京|ソウル|リスボン|ウィーン",
        "月曜日|火曜日|水曜日|木曜日|金曜日|土曜日|日曜日",
        "晴れ時々曇り|小雨|大雪|濃霧|雷雨|強風|快晴",
        "{day}の{city}の天気は{weather}、最高気温は{n}度でしょう。",
        "{city}発{other}行きの列車は{hour}時{minute}分に{k}番線から発車します。",
        "{city}の市立博物館は午前{k}時に開館し、{day}は休館です。",
    ),
    "ko": (
        "런던|파리|로마|베를린|마드리드|아테네|모스크바|카이로|델리|베이징|도쿄|서울|리스본|빈",
        "월요일|화요일|수요일|목요일|금요일|토요일|일요일",
        "맑음|약한 비|폭설|짙은 안개|뇌우|강풍|구름 조금",
        "{day} {city} 날씨: {weather}, 낮 최고 기온 {n}도.",
        "{city}발 {other}행 열차는 {hour}시 {minute}분에 {k}번 승강장에서 출발합니다.",
        "{city} 시립 박물관은 오전 {k}시에 열고 {day}에 쉽니다.",
    ),
}
TOPICS = ("weather", "timetable", "opening")

# English patterns of their own: topic, pattern, and the words for each slot
ENGLISH: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "reviews",
        "The {thing} is {verdict}, but the {part} {flaw}.",
        {
            "thing": "camera|tent|blender|office chair|rucksack|bicycle lamp|keyboard|raincoat|suitcase",
            "verdict": "well made|good value|lighter than expected|easy to use|just as described",
            "part": "manual|handle|packaging|colour|cover",
            "flaw": "disappointed me|could be better|broke after a week|smells of plastic",
        },
    ),
    (
        "events",
        "{when}, the {place} hosts {event} for {who}.",
        {
            "when": "Next weekend|On Friday night|In the last week of May|Every second Tuesday",
            "place": "library|town hall|botanical garden|youth club|art gallery|old fire station",
            "event": "a flea market|a poetry reading|a quiz night|a dance class|a repair workshop",
            "who": "the whole family|beginners|pensioners|students|everyone who is curious",
        },
    ),
    (
        "housing",
        "For rent: {rooms} {where}, {extra}, {n} euros a month.",
        {
            "rooms": "a bright two-room flat|a furnished studio|a terraced house|a loft",
            "where": "near the university|in a quiet street|above a bakery|by the canal|close to the station",
            "extra": "with a balcony|pets allowed|heating included|no lift|with a cellar and a garden",
            "n": "420|560|690|780|910|1150|1300",
        },
    ),
    (
        "lost-property",
        "{what} {action} {where}; please {contact}.",
        {
            "what": "A tabby cat|A bunch of keys|A child's red mitten|A black umbrella|A silver ring",
            "action": "was lost|was found|has been missing since Sunday",
            "where": "by the playground|on the number seven bus|outside the chemist's|in the park",
            "contact": "call the caretaker|ask at the front desk|ring the bell at number five",
        },
    ),
)


def pick(seed: str, choices: int) -> int:
    """A pseudo-random number below ``choices`` that depends only on ``seed``."""
    return int.from_bytes(hashlib.sha256(seed.encode("utf-8")).digest()[:8], "big") % choices


def fill(pattern: str, slots: dict[str, list[str]], seed: str) -> str:
    """Fill each slot of ``pattern`` with a word."""
    return pattern.format(
        **{name: words[pick(f"{seed} {name}", len(words))] for name, words in slots.items()}
    )


def variants(pattern: str, slots: dict[str, list[str]], seed: str) -> Iterator[str]:
    """`PER_PATTERN` different texts."""
    seen: set[str] = set()
    attempt = 0
    while len(seen) < PER_PATTERN:
        text = fill(pattern, slots, f"{seed} {attempt}")
        attempt += 1
        if text not in seen:
            seen.add(text)
            yield text


def generated() -> Iterator[tuple[str, str, str]]:
    """Language, topic and text from the patterns."""
    for language, (cities, days, weather, *patterns) in LANGUAGES.items():
        names = cities.split("|")
        slots = {
            "city": names[::2],
            "other": names[1::2],  # never the city itself
            "day": days.split("|"),
            "weather": weather.split("|"),
            "n": [str(degrees) for degrees in range(2, 10)],
            "k": [str(number) for number in range(8, 12)],
            "hour": [str(hour) for hour in range(6, 23)],
            "minute": ["05", "12", "20", "34", "41", "58"],
        }
        for topic, pattern in zip(TOPICS, patterns, strict=True):
            for text in variants(pattern, slots, f"{language} {topic}"):
                yield language, topic, text
    for topic, pattern, words in ENGLISH:
        slots = {name: choices.split("|") for name, choices in words.items()}
        for text in variants(pattern, slots, topic):
            yield "en", topic, text


def corpus() -> Iterator[dict[str, Any]]:
    """The documents in the order of the file."""
    written = (HERE / "source" / "sentences.tsv").read_text("utf-8").splitlines()[1:]
    counts: Counter[tuple[str, str]] = Counter()
    for language, topic, text in (*(tuple(line.split("\t")) for line in written), *generated()):
        counts[language, topic] += 1
        number = counts[language, topic]
        yield {"id": f"{language}-{topic}-{number:03}", "text": text, "lang": language, "topic": topic}


def main() -> None:
    """Write the file."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in corpus())
    (HERE / "corpus.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()

"""The languages whose words are stemmed, their most frequent function words, and which language texts are in.

Function words serve twice: they are left out of queries, and they tell which language a collection is in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["AUTO", "LANGUAGES", "NONE", "check_language", "detect_language", "stop_words"]

AUTO = "auto"
"""The language that the texts are in, as far as it can be told."""
NONE = "none"
"""No stems and no stop words."""

LANGUAGES = {
    "arabic": "ar",
    "armenian": "hy",
    "basque": "eu",
    "catalan": "ca",
    "danish": "da",
    "dutch": "nl",
    "english": "en",
    "finnish": "fi",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hindi": "hi",
    "hungarian": "hu",
    "indonesian": "id",
    "irish": "ga",
    "italian": "it",
    "lithuanian": "lt",
    "nepali": "ne",
    "norwegian": "no",
    "portuguese": "pt",
    "romanian": "ro",
    "russian": "ru",
    "serbian": "sr",
    "spanish": "es",
    "swedish": "sv",
    "tamil": "ta",
    "turkish": "tr",
    "yiddish": "yi",
}
"""The names of languages with a stemmer, and their codes of ISO 639-1."""

_STOP_WORDS = {
    "english": """a about above after again all also am an and any are as at be because been before being between
        both but by can could did do does doing don down during each few for from further had has have having he her
        here hers him his how i if in into is it its itself just me more most my no nor not now of off on once only
        or other our ours out over own s same she should so some such t than that the their theirs them then there
        these they this those through to too under until up us very was we were what when where which while who whom
        why will with would you your yours""",
    "german": """aber als am an auch auf aus bei bin bis da dann das dass daß dein dem den der des dessen die dies
        diese dieser dieses doch dort du durch ein eine einem einen einer eines er es etwas für hat hatte hatten ich
        ihm ihn ihr ihre im in ist ja kann kein keine man mein mich mir mit muss nach nicht nichts noch nun nur ob
        oder ohne sehr sein seine sich sie sind so über um und uns unter vom von vor wann war waren was weil welche
        wenn wer werden wie wieder wir wird wo zu zum zur zwischen""",
    "french": """à ai au aux avec avoir c ce ces cet cette comme d dans de des du elle elles en est et été être eu il
        ils j je l la le les leur leurs lui m ma mais me mes moi mon n ne nos notre nous on ont ou où par pas plus
        pour qu quand que quel quelle qui s sa sans se ses si son sont sur t ta te tes toi ton tu un une vos votre
        vous y était""",
    "spanish": """a al algo ante antes aquel aquella como con contra cual cuando de del desde donde dos el él ella
        ellos en entre era es esa ese eso esta está este esto fue ha había han hasta hay la las le les lo los más me
        mi mientras muy nada ni no nos o otra otro para pero por porque qué que quien se ser si sí sin sobre son su
        sus también tan tiene todo tu un una uno unos y ya yo""",
    "italian": """a abbiamo ad agli ai al alla alle allo anche avere c che chi ci come con contro cui da dagli dai
        dal dalla dalle degli dei del della delle dello di dove e è ed era essere fra gli ha hanno ho i il in io l la
        le lei lo loro lui ma mi mia mio nei nel nella nelle noi non o per perché più quale quando quella quello
        questa questo se sei si sia sono sta su sua sue sul sulla suo tra tu un una uno vi""",
    "portuguese": """a ao aos as às até com como da das de dela dele depois do dos e é ela ele eles em entre era essa
        esse esta está este eu foi foram há isso isto já lhe mais mas me mesmo meu minha muito na não nas nem no nos
        nós o os ou para pela pelas pelo pelos por qual quando que quem são se sem ser seu seus só sua suas também te
        tem tinha um uma você""",
    "dutch": """aan al als bij dan dat de der deze die dit doch doen door dus een en er ge geen had heb hebben heeft
        het hier hij hoe hun iemand iets ik in is ja je kan kon maar me meer men met mij mijn moet na naar niet niets
        nog nu of om omdat ons ook op over reeds te tegen toch toen tot u uit uw van veel voor waar waren was wat we
        wel werd wezen wie wij wil worden zal ze zelf zich zij zijn zo zonder zou""",
    "swedish": """alla allt att av blev bli blir dem den denna deras dess dessa det detta dig din du där då efter
        eller en ett från för ha hade han hans har henne hennes hon honom hur här i icke inom inte jag ju kan kunde
        man med mellan men mig min mot mycket ni nu när någon något några och om oss på samma sedan sig sin sina
        skulle som så till under upp ut utan vad var vara varför vi vid vilken än är över""",
    "danish": """af alle andet at blev blive bliver da de dem den denne der deres det dette dig din disse dog du efter
        eller en end er et for fordi fra før ham han hans har havde have hende hendes her hos hun hvad hvem hvis hvor i
        ikke ind jeg jo kan kunne man mange med meget men mere mig min mine mod må når ned noget nogle nu og også om op
        os over på selv sig sin skal skulle som så til ud under var ved vi vil ville være været""",
    "norwegian": """alle at av ble bli blir da de deg dei dem den denne der dere det dette di din disse du eit eller en
        enn er et etter for fordi fra før ha hadde han hans har her hos hun hva hvem hvis hvor i ikke inn jeg jo kan
        kom kunne man mange med meg mellom men mer min mot mye må ned nei noe noen nå når og også om opp oss over på
        seg selv sin skal skulle slik som så til under ut uten var ved vi vil ville være vært å""",
    "finnish": """ei eivät en että hän häntä he hänen ja jo joka jos jotka kanssa kuin kun me mikä minä minun mitä
        mukaan mutta mutta myös ne niin noin nyt ole oli olivat olla on ovat se sekä sen siitä sitä tai tämä tämän te
        tuo vain vaan voi yli""",
    "russian": """а без более бы был была были было быть в вам вас вдруг ведь во вот все всего вы где да даже для до
        его ее если есть еще ещё же за здесь и из или им их к как когда кто ли либо мне может мы на надо наш не него
        нее нет ни них но ну о об однако он она они оно от по под при с со так также такой там те тем то того тоже
        только том ты у уже хотя чего чей чем что чтобы эта эти это я""",
    "turkish": """acaba ama aslında az bazı belki bir biri birkaç biz bu bunu çok çünkü da daha de defa diye en gibi
        hem hep hepsi her hiç için ile ise kez ki kim mı mi mu mü nasıl ne neden nerede niye o sanki siz şey şu tüm
        ve veya ya yani""",
    "hungarian": """a abban ahhoz aki amely az azok azt be ben de egy egyik el én és ez ezek ezt fel ha hogy hogyan
        igen így is itt jó kell ki le lenne lesz más meg mert mi mint most nagy nem nincs ő össze pedig s sem szerint
        talán te teljes től után vagy van volt""",
    "romanian": """a acest această acum ai al ale am ar are as au avea ca că care cât ce cel cele cu cum da dar de
        deci despre din după ea ei el este eu fi fie fost i îi îl în îmi între la le lor lui mai mea meu mi nici nu o
        or pe pentru prin sa să sale sau se si și sunt te tot un una unde unei unor unui va vom vor""",
    "indonesian": """ada adalah agar akan aku anda antara apa atas atau bagi bahwa banyak belum bisa dalam dan dapat
        dari dengan di dia hanya harus ia ini itu jika juga kami karena ke kepada kita lain lebih maka mereka oleh
        pada para saat saya sebagai sebuah secara seperti serta sudah telah tidak untuk yang""",
}

_OF_OTHERS = """od za iz kao što koji koja koje kako nije će biti više kada ako može zbog prema nakon treba nisu također
    tudi lahko kot še pri če vse zelo ker kjer vedno bodo imajo vsi kaj
    się jest że jak dla czy przez tego są tylko już oraz bardzo być który które
    jsem už jsou když nebo který není bylo aby než také sú alebo keď ktorý ktoré ako čo
    els amb més aquest aquesta també són quan perquè després només
    ang mga ng isang ito ako mula siya niya lahat rin upang nila sila nang
    uchun haqida kerak barcha keyin juda mumkin ular yoki lekin edi ekan hamda
    kui või ning väga pärast nende kuid selle olid kõik juba võib sest nagu
    í að við ekki með eru frá það þar því eða hún"""
"""Of other languages, function words that none above has: of Croatian, Serbian and Bosnian; Slovenian; Polish; Czech
and Slovak; Catalan; Tagalog; Uzbek; Estonian; Icelandic. They share others with those above."""
_OF_RELATIVES = {
    "dutch": """nie hy sy vir hulle ek hierdie baie daardie sodat elkeen jy gewees asook""",
    "finnish": """mis aga ta sa nad nende tema mida kes veel kus teda mind""",
    "indonesian": """ialah kerana bahawa beliau sahaja tiada iaitu apabila manakala hendaklah daripada sekiranya boleh
        mempunyai awak dah nak semasa sentiasa mahu selepas""",
    "portuguese": """unha un non moi pola nun nunha dun dunha coa cos máis mentres tamén ata dende hai pero cando xa
        moito moita á lle súa despois""",
    "russian": """з що це як від але він його є ви ще які вже якщо або щоб чи її дуже після їх вона всі і
        ў што гэта ён яна яны калі пра якія якая таксама ці толькі пасля
        е се аз тя че ще са това като най към съм след през които трябва всички който във което един още този тази няма
        ќе дека ги како тоа кој кои кога тој оваа еден
        је није ће која које али бити био због само овај ово још када""",
    "spanish": """unha non moi pola nunha dunha cos máis mentres tamén ata dende eles cando xa moito moita ao aos lle
        súa""",
    "turkish": """və üçün ilə həm hər çox nə mən sən görə isə edir də haqqında lakin ancaq əgər deyil mənim""",
}
"""Of relatives of a language, function words that it lacks: of Afrikaans; Estonian; Malay; Galician; Ukrainian,
Belarusian, Bulgarian, Macedonian and Serbian; Galician; Azerbaijani."""

_WORD = re.compile(r"[^\W\d_]+")
_NO_RUSSIAN = re.compile("[іїєґўјљњћђ]")
_RUSSIAN = re.compile("[ыэ]")  # of its relatives, only Belarusian has these
_LEAST_SHARE = 0.06  # of function words; texts have 25 to 50 %, titles some 20 %
_LEAST_WORDS = 3
_AHEAD = 1.3  # times the share of the second language, if both are close relatives
_SIBLINGS = {"danish", "norwegian"}  # which share most function words, and are told by the others
_MOST_OF_OTHERS = 0.1  # for each function word found; other languages' texts have .14 and more, its own .006
_LEAST_TO_LACK = 100  # words: one in ten Russian ones has such a letter


def check_language(language: object) -> str:
    """The name of ``language``: "auto", "none", or a name or code of `LANGUAGES`.

    Raises:
        TypeError: it is not a string.
        ValueError: it is none of them.
    """
    if not isinstance(language, str):
        raise TypeError(f"language must be a string such as 'english', not {type(language).__name__}")
    wanted = language.strip().lower()
    if wanted in (AUTO, NONE) or wanted in LANGUAGES:
        return wanted
    for name, code in LANGUAGES.items():
        if wanted == code:
            return name
    raise ValueError(f"unknown language {language!r}; available: auto, none, {', '.join(sorted(LANGUAGES))}")


def stop_words(language: str) -> frozenset[str]:
    """The function words of ``language``, in lower case; none if they are not known."""
    return _SETS.get(language, frozenset())


def detect_language(texts: Iterable[str]) -> str:
    """The language whose function words are the most frequent in ``texts``.

    "auto" if it cannot be told, or is probably another that shares some of them, as Ukrainian does with Russian.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    total = sum(counts.values())
    found = sorted(
        ((sum(counts[word] for word in words), language) for language, words in _SETS.items()), reverse=True
    )
    (most, language), (second, follower) = found[:2]
    if most < max(_LEAST_WORDS, _LEAST_SHARE * total):
        return AUTO
    shared = 0
    if {language, follower} == _SIBLINGS:
        shared = sum(counts[word] for word in _SETS[language] & _SETS[follower])
    if most == second or most - shared < _AHEAD * (second - shared):
        return AUTO
    if language == "russian" and not _spelled_in_russian(counts):
        return AUTO
    others = sum(counts[word] for word in _OTHERS[language])
    return AUTO if others >= max(2, _MOST_OF_OTHERS * most) else language


def _spelled_in_russian(counts: Counter[str]) -> bool:
    """Whether few words have letters that Russian lacks, and any, of enough, those that its relatives lack."""
    total = sum(counts.values())
    other = sum(count for word, count in counts.items() if _NO_RUSSIAN.search(word))
    return 20 * other < total and (total < _LEAST_TO_LACK or any(map(_RUSSIAN.search, counts)))


_OTHERS = {
    language: frozenset((_OF_OTHERS + " " + _OF_RELATIVES.get(language, "")).split())
    for language in _STOP_WORDS
}
_SETS = {language: frozenset(words.split()) for language, words in _STOP_WORDS.items()}

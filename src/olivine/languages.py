"""Names of languages by their ISO 639-1 codes: models are told names, and clients send codes."""

from __future__ import annotations

from olivine.errors import RequestError, printable

_LONGEST = 60  # characters of a name

_NAMES = dict(
    entry.split("=")
    for entry in """
af=Afrikaans|am=Amharic|ar=Arabic|as=Assamese|az=Azerbaijani|ba=Bashkir|be=Belarusian|bg=Bulgarian
bn=Bengali|bo=Tibetan|br=Breton|bs=Bosnian|ca=Catalan|cs=Czech|cy=Welsh|da=Danish|de=German|el=Greek
en=English|eo=Esperanto|es=Spanish|et=Estonian|eu=Basque|fa=Persian|fi=Finnish|fo=Faroese|fr=French
fy=Frisian|ga=Irish|gd=Scottish Gaelic|gl=Galician|gu=Gujarati|ha=Hausa|he=Hebrew|hi=Hindi
hr=Croatian|ht=Haitian Creole|hu=Hungarian|hy=Armenian|id=Indonesian|ig=Igbo|is=Icelandic|it=Italian
ja=Japanese|jv=Javanese|ka=Georgian|kk=Kazakh|km=Khmer|kn=Kannada|ko=Korean|ku=Kurdish|ky=Kyrgyz
la=Latin|lb=Luxembourgish|ln=Lingala|lo=Lao|lt=Lithuanian|lv=Latvian|mg=Malagasy|mi=Maori
mk=Macedonian|ml=Malayalam|mn=Mongolian|mr=Marathi|ms=Malay|mt=Maltese|my=Burmese
nb=Norwegian Bokmål|ne=Nepali|nl=Dutch|nn=Norwegian Nynorsk|no=Norwegian|oc=Occitan|or=Odia
pa=Punjabi|pl=Polish|ps=Pashto|pt=Portuguese|ro=Romanian|ru=Russian|rw=Kinyarwanda|sa=Sanskrit
sd=Sindhi|si=Sinhala|sk=Slovak|sl=Slovenian|sn=Shona|so=Somali|sq=Albanian|sr=Serbian|su=Sundanese
sv=Swedish|sw=Swahili|ta=Tamil|te=Telugu|tg=Tajik|th=Thai|tk=Turkmen|tl=Tagalog|tr=Turkish|tt=Tatar
uk=Ukrainian|ur=Urdu|uz=Uzbek|vi=Vietnamese|wo=Wolof|xh=Xhosa|yi=Yiddish|yo=Yoruba|zh=Chinese
zu=Zulu
""".strip()
    .replace("\n", "|")
    .split("|")
)


def language_name(given: str, param: str = "language") -> str:
    """A language by its name or its code (`de`, `pt-BR`), as a model is told of it."""
    text = given.strip()
    code = text.replace("_", "-").partition("-")[0].lower()
    if code in _NAMES and len(text) <= len("zh-Hant-TW"):
        return _NAMES[code]
    if not 2 < len(text) <= _LONGEST or not text.isprintable():
        message = f"{param} must be a language's name or its code, such as German or de, and is "
        raise RequestError(message + repr(printable(text, 40)), code="invalid_value", param=param)
    return text[0].upper() + text[1:]

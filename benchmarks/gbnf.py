"""CPU time of the masks of grammars in GBNF, by terminals and character by character.

    python benchmarks/gbnf.py

Each grammar follows texts token by token, with a byte-level BPE of 152,000 tokens. The first line
of a grammar is by the terminals that `gbnf_terminals` finds; the second is by single characters.
Both have the same masks, which is checked.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from tokenizers import Tokenizer
from vocabulary import large_tokenizer, large_vocabulary

from quire.errors import GrammarError
from quire_structured_output.gbnf.gbnf_grammar import ROOT
from quire_structured_output.gbnf.gbnf_lark import lark_of_gbnf, written
from quire_structured_output.gbnf.gbnf_syntax import parse_gbnf
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (member ("," ws member)*)? "}" ws
member ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,16})? ws
ws ::= ([ \t\n] ws)?
"""
ARITHMETIC = r"""
root ::= (sum "=" ws sum "\n")+
sum ::= term ([-+*/] ws term)*
term ::= name | number | "(" ws sum ")" ws
name ::= [a-z] [a-z0-9_]* ws
number ::= digits ("." digits)? ws
digits ::= [0-9] digits | [0-9]
ws ::= [ \t]*
"""
PROGRAM = r"""
root ::= function*
function ::= type name "(" (type name ("," ws type name)*)? ")" ws block
block ::= "{" ws statement* "}" ws
type ::= ("int" | "float" | "char") [ \t\n]+
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= type? name ws "=" ws sum ";" ws | call ";" ws | "return" [ \t\n]+ sum ";" ws
  | "while" test block | "if" test block ("else" ws block)? | comment
test ::= "(" sum ([<>] | [<>=!] "=") ws sum ")" ws
sum ::= product ([-+] ws product)*
product ::= factor ([*/] ws factor)*
factor ::= name ws | call | number ws | text ws | "-" factor | "(" ws sum ")" ws
call ::= name "(" (sum ("," ws sum)*)? ")" ws
number ::= [0-9]+ ("." [0-9]+)?
text ::= "\"" ([^"\\\n] | "\\" ["\\nt])* "\""
comment ::= "//" [^\n]* "\n" ws
ws ::= [ \t\n]*
"""
PERSON = {
    "name": 'Ada Lovelace, "Countess"',
    "born": [1815, 12, 10],
    "notes": {"on": "the Analytical Engine, \u00e9dition de 1843", "pages": 66, "final": True},
    "values": [-1.5, 2e10, None],
}
ITEMS = [{"id": i, "label": f"item number {i}", "price": i * 1.25} for i in range(10)]
CODE = """int main(int argc, char argv) {
  int x = 12 + y * (3 - f(1, "a text of words"));
  // a comment of words
  while(x <= 10) {
    x = x + 1;
    print("%d and more", x);
  }
  if(x == 3) { return 4; } else { y = -1; }
  return x;
}
"""
GRAMMARS = {
    "JSON": (JSON, [json.dumps(PERSON), json.dumps({"items": ITEMS}, indent=1)]),
    "arithmetic": (ARITHMETIC, ["alpha = 12 + beta * (3.5 - x_1) / 7\ntotal=(1+2)*(3-4)\n" * 3]),
    "program": (PROGRAM, [CODE]),
}


@dataclass(frozen=True, slots=True)
class Walk:
    """Times of the masks of some texts in ms, sorted, and a digest of the masks."""

    times_ms: list[float]
    digest: bytes

    def quantile(self, part: float) -> float:
        """Return the time that this part of the masks does not exceed."""
        return self.times_ms[min(len(self.times_ms) - 1, int(len(self.times_ms) * part))]


def walk(backend: LLGuidanceBackend, lark: str, texts: list[str], tokenizer: Tokenizer) -> Walk:
    """Follow texts token by token."""
    compiled = backend.load(lark.encode())
    words = memoryview(bytearray((backend.vocabulary.size + 31) // 32 * 4)).cast("I")
    times_ms, digest = [], blake2b()
    for text in texts:
        matcher = compiled.matcher()
        for token_id in tokenizer.encode(text).ids:
            start = time.process_time()
            matcher.fill_bitmask(words)
            times_ms.append((time.process_time() - start) * 1e3)
            digest.update(words)
            if not matcher.accept(token_id):
                raise GrammarError(f"the grammar does not allow {text!r}")
    return Walk(sorted(times_ms), digest.digest())


def forms(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield both translations of a grammar, with their names and CPU times in ms."""
    start = time.process_time()
    lark = lark_of_gbnf(text)
    yield "terminals", lark, (time.process_time() - start) * 1e3
    start = time.process_time()
    grammar = parse_gbnf(text)
    lark = written(grammar, grammar.rules[ROOT], {})
    yield "characters", lark, (time.process_time() - start) * 1e3


def main() -> None:
    """Print a table."""
    tokenizer = large_tokenizer()
    backend = LLGuidanceBackend(large_vocabulary(tokenizer))
    print("| grammar | read by | translated, ms | masks | median, ms | p99 | max |")
    print("|---|---|---|---|---|---|---|")
    for name, (text, texts) in GRAMMARS.items():
        digests = set()
        for form, lark, translated_ms in forms(text):
            begin = f"| {name} | {form} | {translated_ms:.1f} |"
            try:
                found = walk(backend, lark, texts, tokenizer)
            except GrammarError as error:
                print(f"{begin} {error} | | | |")
                continue
            digests.add(found.digest)
            quantiles = " | ".join(f"{found.quantile(part):.3g}" for part in (0.5, 0.99, 1.0))
            print(f"{begin} {len(found.times_ms)} | {quantiles} |")
        if len(digests) > 1:
            raise GrammarError(f"the masks of the grammar {name} differ")


if __name__ == "__main__":
    main()

import subprocess
import sys


def test_a_conversation_goes_line_by_line_until_an_empty_one():
    done = subprocess.run(
        [sys.executable, "-m", "quire.cli", "chat", "demo", "--temperature", "0"],
        input="What is quire?\nWhat is a KV cache?\n\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, second, _ = done.stdout.replace("> ", "").split("\n", 2)
    assert "quire is an LLM inference and serving engine" in first
    assert second.strip()

"""The words of an agent's session: a system prompt with tools, questions, tool results, and prompts for single streams.

The tools are described in the system prompt's text, so that each server's template renders the same tokens. The first
prompt is about 849 tokens for SmolLM2 and each step adds about 91 to 124 to it. Everything is the same in each run; a
`salt` at the very start makes a session that shares nothing with those before it.
"""
from __future__ import annotations

SYSTEM = """You are a coding agent. You work in a terminal, in a folder with the source code of one project, on behalf of a \
programmer who reads your answers on a small screen. You look before you change anything, you change as little as the task \
needs, and you say in plain words what you did and what is left to do.

How you work
- Read a file before you edit it. Search for the uses of a name before you rename it.
- Prefer the tools below to shell commands that do the same. Use absolute paths everywhere.
- Run the tests after a change. If one fails, find out why before you go on; never change a test so that it passes.
- Do not write comments that repeat what a line does. Follow the style of the file that you are in.
- If a command prints more than you need, look at the part that matters and leave the rest alone.
- When several calls do not depend on each other, make them at the same time.
- Never commit, push, delete branches or install packages unless you were asked to do so.
- If you do not know something, say so. If two readings of the task are possible, ask which one is meant.

Tools
Each tool takes a JSON object and gives back text. A result that begins with "error" means that the call failed.

{"name": "Bash", "description": "Runs a command in a shell and gives back what it printed. The shell keeps its working \
folder between calls but not its variables. Commands that run for more than two minutes are ended.", "input_schema": \
{"type": "object", "properties": {"command": {"type": "string"}, "timeout_ms": {"type": "number"}}, "required": ["command"]}}
{"name": "Read", "description": "Gives back the lines of a text file with their numbers. Without a limit the first two \
thousand lines are read; lines that are very long are cut.", "input_schema": {"type": "object", "properties": {"file_path": \
{"type": "string"}, "offset": {"type": "number"}, "limit": {"type": "number"}}, "required": ["file_path"]}}
{"name": "Edit", "description": "Replaces a piece of text in a file that was read before. The old text must occur exactly \
once, with the white space that it has in the file.", "input_schema": {"type": "object", "properties": {"file_path": {"type": \
"string"}, "old_string": {"type": "string"}, "new_string": {"type": "string"}}, "required": ["file_path", "old_string", \
"new_string"]}}
{"name": "Write", "description": "Writes a whole file. A file that is there already is replaced, so read it first.", \
"input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}, \
"required": ["file_path", "content"]}}
{"name": "Grep", "description": "Searches the files below a folder for a regular expression and gives back the lines that \
match, with the names of their files.", "input_schema": {"type": "object", "properties": {"pattern": {"type": "string"}, \
"path": {"type": "string"}}, "required": ["pattern"]}}

Environment
The working folder is /home/user/project, a git repository on the branch main. The platform is linux. Today is a Monday."""

FIRST = """The command line of this project has an option --verbose that is read but never used. Please find out where it \
is parsed and what it should change, then tell me in a few sentences what you would do, before you edit anything."""

OTHERS = (
    "Which file holds the settings, and how would I add a new one? Answer in a few sentences.",
    "Explain in a few sentences how the tests of this project are run, and what I need for that.",
    "Is there any function in the folder src that is longer than sixty lines? Tell me which ones.",
)
"""First questions of new sessions with the same system prompt."""

RESULTS = (
    "Result of Grep:\nsrc/cli.py:31:    parser.add_argument('--verbose', action='store_true')\nsrc/cli.py:58:    options = parser.parse_args(argv)\n"
    "src/log.py:12:def configure(level: int) -> None:",
    "Result of Read:\n56  def main(argv):\n57      parser = build_parser()\n58      options = parser.parse_args(argv)\n59      return run(options.path)\n"
    "60  \n61  if __name__ == '__main__':",
    "Result of Bash:\n14 passed, 1 failed in 2.31s\nFAILED tests/test_cli.py::test_help - AssertionError: expected status 0, got 2",
    "Result of Read:\n10  import logging\n11  \n12  def configure(level: int) -> None:\n13      logging.basicConfig(level=level, format='%(message)s')\n"
    "14      logging.captureWarnings(True)",
    "Result of Edit:\nThe file /home/user/project/src/cli.py was changed. Lines 57 to 60 are now:\n57      parser = build_parser()\n"
    "58      options = parser.parse_args(argv)",
    "Result of Bash:\nOn branch main\nChanges not staged for commit:\n  modified:   src/cli.py\n  modified:   tests/test_cli.py\n15 passed in 2.18s",
)
"""What tools give back, in turn."""

TOPICS = ("a lighthouse", "a bakery", "a clockmaker", "a river", "a library", "a train", "an orchard", "a small island")


def system(salt: str) -> str:
    """The system prompt of the session called `salt`."""
    return f"Session {salt}. {SYSTEM}"


def result(step: int) -> str:
    """The tool result that follows the answer number `step` (from 0)."""
    return f"{RESULTS[step % len(RESULTS)]}\n\nGo on with the task. This was call number {step + 1}."


def stream(index: int, salt: str) -> str:
    """The prompt of one of several streams that run together: short, and with a long answer."""
    return (f"Story {salt}, number {index + 1}: tell me a long story about {TOPICS[index % len(TOPICS)]} and the people who live near it. "
            "Give every person a name, describe the place, and take your time.")

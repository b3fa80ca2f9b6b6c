"""Browser mode: a request whose tools steer a browser, as a small model can work with it.

The system prompt becomes a short one and the tools those that a browser is steered with, seen as text: snapshots, no
screenshots. Servers other than chrome-devtools are known by their name, their tools by what they do. Where the client
loads its tools only on demand, the tool that loads them stays.
"""
from __future__ import annotations

import dataclasses
import logging
import re

from .code_mode import PROMPTS, TEMPERATURE, is_claude_code, slim_messages
from ..protocol import Message, Request, TextBlock
from .slimming import slim_tool
from .unlisted import unlisted

logger = logging.getLogger(__name__)

BROWSER_PROMPT = (PROMPTS / "browser.txt").read_text(encoding="utf-8").strip()

CHROME = frozenset(
    f"mcp__chrome-devtools__{name}"
    for name in "navigate_page take_snapshot click fill type_text press_key evaluate_script select_page list_pages".split()
)
"""All that is shown of this server, which has many more."""

_SERVER = re.compile(r"mcp__(?!chrome-devtools__)[\w.-]*(?:browser|chrome|chromium|firefox|playwright|puppeteer|selenium)[\w.-]*?__(.+)", re.IGNORECASE)
_ACTION = re.compile(
    r"(?:browser_|puppeteer_|page_)?(?:navigate(?:_\w+)?|goto|go_back|open(?:_url)?|(?:take_|page_)?snapshot|get_page_text|read_page|find|click(?:_\w+)?"
    r"|fill(?:_\w+)?|form_input|type(?:_\w+)?|press(?:_key)?|evaluate(?:_\w+)?|javascript_tool|run_script|select(?:_\w+)?|scroll(?:_\w+)?|hover"
    r"|wait(?:_\w+)?|handle_dialog|(?:list_|new_|close_|switch_)?(?:tabs?|pages?)(?:_\w+)?)",
    re.IGNORECASE,
)
_LISTED = re.compile(r"^mcp__[A-Za-z0-9_.-]+$", re.MULTILINE)


def steers_browser(name: str) -> bool:
    """Whether a tool of this name is one to steer a browser with."""
    server = _SERVER.fullmatch(name)
    return name in CHROME or bool(server and _ACTION.fullmatch(server[1]))


def browser_mode(request: Request) -> Request | None:
    """The request as the model shall see it, None where no tool steers a browser."""
    loadable = _loadable(request.messages)
    if not any(steers_browser(tool.name) for tool in request.tools) and not loadable:
        return None
    kept = {tool.name for tool in request.tools if steers_browser(tool.name) or tool.name == request.tool_choice.name}
    if loadable or any(tool.defer_loading and tool.name in kept for tool in request.tools):
        kept.add("ToolSearch")
    tools = tuple(slim_tool(tool) for tool in request.tools if tool.name in kept)
    loaded_late = tuple(tool for tool in unlisted(request.messages, request.tools) if steers_browser(tool.name))
    logger.info("browser mode: system %d → %d characters, tools %d → %d", len(request.system), len(BROWSER_PROMPT), len(request.tools), len(tools))
    changed = dataclasses.replace(request, system=BROWSER_PROMPT, tools=tools + loaded_late)
    if is_claude_code(request):
        temperature = TEMPERATURE if request.temperature is None else request.temperature
        changed = dataclasses.replace(changed, messages=tuple(slim_messages(changed)), temperature=temperature)
    return changed


def _loadable(messages: tuple[Message, ...]) -> bool:
    """Whether the client lists such a tool by name, to be loaded on demand."""
    texts = (block.text for message in messages if message.role != "assistant" for block in message.content if isinstance(block, TextBlock))
    return any(steers_browser(name) for text in texts for name in _LISTED.findall(text))

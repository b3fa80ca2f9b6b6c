"""Chat templates for models that come without a usable one.

Gemma 4 has its own turns, calls and results; anything else gets ChatML, which most models have met.
A template is chosen by the tokenizer's vocabulary, never by a model's name or path.
"""
from __future__ import annotations

from collections.abc import Callable

CHATML = """{{- bos_token if bos_token is defined and bos_token else '' -}}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

# values: strings between <|"|> marks, nothing escaped, keys sorted
_GEMMA4_MACROS = """{%- macro value(v, quote_keys=false) -%}
{%- if v is none -%}null
{%- elif v is boolean -%}{{- 'true' if v else 'false' -}}
{%- elif v is string -%}{{- '<|"|>' + v + '<|"|>' -}}
{%- elif v is mapping -%}
{%- set parts = namespace(all=[]) -%}
{%- for key, item in v | dictsort -%}{%- set parts.all = parts.all + [('<|"|>' ~ key ~ '<|"|>' if quote_keys else key) ~ ':' ~ value(item, quote_keys)] -%}{%- endfor -%}
{{- '{' ~ parts.all | join(',') ~ '}' -}}
{%- elif v is sequence -%}
{%- set parts = namespace(all=[]) -%}
{%- for item in v -%}{%- set parts.all = parts.all + [value(item, quote_keys)] -%}{%- endfor -%}
{{- '[' ~ parts.all | join(',') ~ ']' -}}
{%- else -%}{{- v -}}{%- endif -%}
{%- endmacro -%}
{%- macro kind(t) -%}{{- value(t | upper if t is string else t | map('upper') | list) -}}{%- endmacro -%}
{%- macro schema(s) -%}
{%- set parts = namespace(all=[]) -%}
{%- if s.description -%}{%- set parts.all = parts.all + ['description:' ~ value(s.description)] -%}{%- endif -%}
{%- if s.enum -%}{%- set parts.all = parts.all + ['enum:' ~ value(s.enum, true)] -%}{%- endif -%}
{%- if s['items'] is mapping and s['items'] -%}{%- set parts.all = parts.all + ['items:{' ~ items(s['items']) ~ '}'] -%}{%- endif -%}
{%- if s.nullable -%}{%- set parts.all = parts.all + ['nullable:true'] -%}{%- endif -%}
{%- if s.properties is mapping -%}{%- set parts.all = parts.all + ['properties:{' ~ properties(s.properties) ~ '}'] -%}{%- endif -%}
{%- if s.required -%}{%- set parts.all = parts.all + ['required:' ~ value(s.required)] -%}{%- endif -%}
{%- if s.type -%}{%- set parts.all = parts.all + ['type:' ~ kind(s.type)] -%}{%- endif -%}
{{- parts.all | join(',') -}}
{%- endmacro -%}
{%- macro properties(all) -%}
{%- set parts = namespace(all=[]) -%}
{%- for name, s in all | dictsort -%}{%- set parts.all = parts.all + [name ~ ':{' ~ schema(s) ~ '}'] -%}{%- endfor -%}
{{- parts.all | join(',') -}}
{%- endmacro -%}
{%- macro items(all) -%}
{%- set parts = namespace(all=[]) -%}
{%- for key, v in all | dictsort if v is not none -%}
{%- if key == 'properties' -%}{%- set parts.all = parts.all + ['properties:{' ~ (properties(v) if v is mapping else '') ~ '}'] -%}
{%- elif key == 'type' -%}{%- set parts.all = parts.all + ['type:' ~ kind(v)] -%}
{%- else -%}{%- set parts.all = parts.all + [key ~ ':' ~ value(v, true)] -%}{%- endif -%}
{%- endfor -%}
{{- parts.all | join(',') -}}
{%- endmacro -%}
{%- macro declaration(f) -%}
{{- '<|tool>declaration:' ~ f.name ~ '{description:' ~ value(f.description or '') -}}
{%- if f.parameters -%}
{%- set p = f.parameters -%}{%- set parts = namespace(all=[]) -%}
{%- if p.properties -%}{%- set parts.all = parts.all + ['properties:{' ~ properties(p.properties) ~ '}'] -%}{%- endif -%}
{%- if p.required -%}{%- set parts.all = parts.all + ['required:' ~ value(p.required)] -%}{%- endif -%}
{%- if p.type -%}{%- set parts.all = parts.all + ['type:' ~ kind(p.type)] -%}{%- endif -%}
{{- ',parameters:{' ~ parts.all | join(',') ~ '}' -}}
{%- endif -%}
{{- '}<tool|>' -}}
{%- endmacro -%}
"""

# one model turn goes on over its calls and their results; thoughts are kept after the last user message only
_GEMMA4_TURNS = """{{- bos_token -}}
{%- set think = enable_thinking is defined and enable_thinking -%}
{%- set led = messages and messages[0].role in ('system', 'developer') -%}
{%- set turns = messages[1:] if led else messages -%}
{%- set ns = namespace(asked=-1, open='', state='') -%}
{%- if led or tools or think -%}
{{- '<|turn>system\\n' + ('<|think|>\\n' if think else '') + (messages[0].content | trim if led else '') -}}
{%- for t in tools or [] -%}{{- declaration(t.function) -}}{%- endfor -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for m in turns -%}{%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in turns -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{%- if role == 'tool' -%}
{%- set called = namespace(name=m.name or 'unknown') -%}
{%- for before in turns[:loop.index0] -%}{%- for c in before.tool_calls or [] -%}{%- if m.tool_call_id and c.id == m.tool_call_id -%}{%- set called.name = c.function.name -%}{%- endif -%}{%- endfor -%}{%- endfor -%}
{{- '<|tool_response>response:' ~ called.name ~ '{value:' ~ value(m.content) ~ '}<tool_response|>' -}}
{%- set ns.state = 'answered' -%}
{%- else -%}
{%- if ns.open and not (ns.open == 'model' and role == 'model') -%}{{- '<turn|>\\n' -}}{%- set ns.open = '' -%}{%- endif -%}
{%- if not ns.open -%}{{- '<|turn>' + role + '\\n' -}}{%- endif -%}
{%- set ns.open = role -%}{%- set ns.state = '' -%}
{%- set thought = m.reasoning_content or m.reasoning -%}
{%- if thought and loop.index0 > ns.asked -%}{{- '<|channel>thought\\n' + thought + '\\n<channel|>' -}}{%- endif -%}
{{- (m.content or '') | trim -}}
{%- for c in m.tool_calls or [] -%}
{{- '<|tool_call>call:' + c.function.name + value(c.function.arguments or {}) + '<tool_call|>' -}}{%- set ns.state = 'called' -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if ns.state == 'called' -%}{{- '<|tool_response>' -}}
{%- elif ns.state == 'answered' -%}{{- '<|channel>thought\\n' if think and add_generation_prompt else '' -}}
{%- else -%}
{{- '<turn|>\\n' if ns.open else '' -}}
{%- if add_generation_prompt -%}{{- '<|turn>model\\n' + ('' if think else '<|channel>thought\\n<channel|>') -}}{%- endif -%}
{%- endif -%}"""

GEMMA4_NAME = "Gemma 4"
GEMMA4 = _GEMMA4_MACROS + _GEMMA4_TURNS


def template_for(has: Callable[[str], bool]) -> tuple[str, str]:
    """A template and its name for a tokenizer that has none. `has`: whether a text is one of its tokens."""
    if all(has(token) for token in ("<|turn>", "<turn|>", "<|tool_call>")):
        return GEMMA4, GEMMA4_NAME
    return CHATML, "ChatML"

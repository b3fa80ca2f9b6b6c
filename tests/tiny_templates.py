"""Chat templates of the families, for tiny_models: own wording; the markers, their order and the whitespace around them are the families'.

TEMPLATE has each family's usual one, EXTRA other forms that real checkpoints carry.
"""
T_LLAMA = """{{- bos_token -}}
{%- set offered = tools is defined and tools is not none -%}
{%- set with_user = tools_in_user_message if tools_in_user_message is defined else true -%}
{%- set ns = namespace(sys='', msgs=messages) -%}
{%- if messages[0].role == 'system' -%}{%- set ns.sys = messages[0].content | trim -%}{%- set ns.msgs = messages[1:] -%}{%- endif -%}
{%- macro offer() -%}{{- 'These functions may be called. A call is JSON and nothing else, in the form {"name": function name, "parameters": object of arguments}.\\n\\n' -}}
{%- for t in tools -%}{{- t | tojson(indent=4) -}}{{- '\\n\\n' -}}{%- endfor -%}{%- endmacro -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}
{%- if builtin_tools is defined or offered -%}{{- 'Environment: ipython\\n' -}}{%- endif -%}
{%- if builtin_tools is defined -%}{{- 'Tools: ' + builtin_tools | reject('equalto', 'code_interpreter') | join(', ') + '\\n\\n' -}}{%- endif -%}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + (date_string if date_string is defined else '26 Jul 2024') + '\\n\\n' -}}
{%- if offered and not with_user -%}{{- offer() -}}{%- endif -%}{{- ns.sys + '<|eot_id|>' -}}
{%- if offered and with_user -%}
{%- if not ns.msgs -%}{{- raise_exception('The functions go into the first message, and there is none.') -}}{%- endif -%}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}{{- offer() -}}{{- ns.msgs[0].content | trim -}}{{- '<|eot_id|>' -}}
{%- set ns.msgs = ns.msgs[1:] -%}
{%- endif -%}
{%- for m in ns.msgs -%}
{%- if 'tool_calls' in m -%}
{%- if m.tool_calls | length != 1 -%}{{- raise_exception('Exactly one call in a message.') -}}{%- endif -%}
{%- set f = m.tool_calls[0].function -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- if builtin_tools is defined and f.name in builtin_tools -%}
{{- '<|python_tag|>' + f.name + '.call(' -}}{%- for k, v in f.arguments | items -%}{{- k + '="' + v + '"' + (', ' if not loop.last else '') -}}{%- endfor -%}{{- ')' -}}
{%- else -%}{{- '{"name": "' + f.name + '", "parameters": ' -}}{{- f.arguments | tojson -}}{{- '}' -}}{%- endif -%}
{{- '<|eom_id|>' if builtin_tools is defined else '<|eot_id|>' -}}
{%- elif m.role in ('tool', 'ipython') -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' -}}{{- m.content | tojson if m.content is mapping or m.content is iterable else m.content -}}{{- '<|eot_id|>' -}}
{%- else -%}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""

T_GEMMA3 = """{{- bos_token -}}{%- set ns = namespace(sys='', msgs=messages) -%}
{%- if messages[0].role == 'system' -%}{%- set c = messages[0].content -%}{%- set ns.sys = (c if c is string else c[0].text) + '\\n\\n' -%}{%- set ns.msgs = messages[1:] -%}{%- endif -%}
{%- for m in ns.msgs -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('Conversation roles must alternate user/assistant') -}}{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}{%- if loop.first -%}{{- ns.sys -}}{%- endif -%}
{%- if m.content is string -%}{{- m.content | trim -}}
{%- elif m.content is iterable -%}{%- for p in m.content -%}{{- '<start_of_image>' if p.type == 'image' else (p.text | trim if p.type == 'text' else '') -}}{%- endfor -%}
{%- else -%}{{- raise_exception('Content is neither text nor parts.') -}}{%- endif -%}
{{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""

# Gemma 4 as published on 2026-07-09. EXTRA has the E2B/E4B form and the launch form, which many conversions still carry.
_GEMMA4_VALUES = """{%- macro val(v, quote_keys=false) -%}
{%- if v is none -%}null
{%- elif v is string -%}{{- '<|"|>' + v + '<|"|>' -}}
{%- elif v is boolean -%}{{- 'true' if v else 'false' -}}
{%- elif v is mapping -%}{{- '{' -}}{%- for k, x in v | dictsort -%}{{- (',' if not loop.first else '') + ('<|"|>' + k + '<|"|>' if quote_keys else k) + ':' -}}{{- val(x, quote_keys) -}}{%- endfor -%}{{- '}' -}}
{%- elif v is sequence -%}{{- '[' -}}{%- for x in v -%}{{- ',' if not loop.first else '' -}}{{- val(x, quote_keys) -}}{%- endfor -%}{{- ']' -}}
{%- else -%}{{- v -}}{%- endif -%}
{%- endmacro -%}
{%- macro prop(s) -%}{%- set o = namespace(p=[]) -%}{%- set t = s['type'] | upper -%}
{%- if s['description'] -%}{%- set o.p = o.p + ['description:' ~ val(s['description'])] -%}{%- endif -%}
{%- if t == 'STRING' and s['enum'] -%}{%- set o.p = o.p + ['enum:' ~ val(s['enum'], true)] -%}{%- endif -%}
{%- if t == 'ARRAY' and s['items'] is mapping and s['items'] -%}{%- set o.p = o.p + ['items:{' ~ items(s['items']) ~ '}'] -%}{%- endif -%}
{%- if s['nullable'] -%}{%- set o.p = o.p + ['nullable:true'] -%}{%- endif -%}
{%- if t == 'OBJECT' -%}
{%- if s['properties'] is mapping -%}{%- set o.p = o.p + ['properties:{' ~ props(s['properties']) ~ '}'] -%}{%- else -%}{%- set o.p = o.p + ['properties:{' ~ props(s, true) ~ '}'] -%}{%- endif -%}
{%- if s['required'] -%}{%- set o.p = o.p + ['required:' ~ val(s['required'])] -%}{%- endif -%}
{%- endif -%}
{{- (o.p + ['type:' ~ val(t)]) | join(',') -}}
{%- endmacro -%}
{%- macro props(d, bare=false) -%}{%- set o = namespace(p=[]) -%}
{%- for k, s in d | dictsort -%}{%- if not bare or k not in ('description', 'type', 'properties', 'required', 'nullable') -%}{%- set o.p = o.p + [k ~ ':{' ~ prop(s) ~ '}'] -%}{%- endif -%}{%- endfor -%}
{{- o.p | join(',') -}}
{%- endmacro -%}
{%- macro items(d) -%}{%- set o = namespace(p=[]) -%}
{%- for k, x in d | dictsort -%}{%- if x is not none -%}
{%- if k == 'properties' -%}{%- set o.p = o.p + ['properties:{' ~ (props(x) if x is mapping else '') ~ '}'] -%}
{%- elif k == 'type' -%}{%- set o.p = o.p + ['type:' ~ val(x | upper if x is string else x | map('upper') | list)] -%}
{%- else -%}{%- set o.p = o.p + [k ~ ':' ~ val(x, true)] -%}{%- endif -%}
{%- endif -%}{%- endfor -%}{{- o.p | join(',') -}}
{%- endmacro -%}
{%- macro declare(f) -%}{%- set o = namespace(p=[]) -%}{%- set d = f.parameters -%}
{%- if d -%}
{%- if d['properties'] -%}{%- set o.p = o.p + ['properties:{' ~ props(d['properties']) ~ '}'] -%}{%- endif -%}
{%- if d['required'] -%}{%- set o.p = o.p + ['required:' ~ val(d['required'])] -%}{%- endif -%}
{%- if d['type'] -%}{%- set o.p = o.p + ['type:' ~ val(d['type'] | upper)] -%}{%- endif -%}
{%- endif -%}
{{- '<|tool>declaration:' ~ f.name ~ '{description:' ~ val(f.description ~ '') ~ (',parameters:{' ~ o.p | join(',') ~ '}' if d else '') ~ '}<tool|>' -}}
{%- endmacro -%}
{%- macro answer(name, body) -%}{{- '<|tool_response>response:' + name -}}{{- val(body) if body is mapping else '{value:' ~ val(body) ~ '}' -}}{{- '<tool_response|>' -}}{%- endmacro -%}
{%- macro unthink(t) -%}{%- set o = namespace(t='') -%}{%- for p in t.split('<channel|>') -%}{%- set o.t = o.t + p.split('<|channel>')[0] -%}{%- endfor -%}{{- o.t | trim -}}{%- endmacro -%}
{%- macro body(m, role) -%}
{%- if m.content is string -%}{{- unthink(m.content) if role == 'model' else m.content | trim -}}
{%- elif m.content is sequence -%}
{%- for p in m.content -%}{{- (unthink(p.text) if role == 'model' else p.text | trim) if p.type == 'text' else ('<|image|>' if p.type in ('image', 'image_url') else ('<|audio|>' if p.type in ('audio', 'input_audio') else '')) -}}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set think = enable_thinking | default(false) -%}
{{- bos_token -}}{%- set ns = namespace(msgs=messages, last=-1, prev='', kind='') -%}
{%- set has_sys = messages and messages[0].role in ('system', 'developer') -%}
{%- if think or tools or has_sys -%}{{- '<|turn>system\\n' -}}{%- if think -%}{{- '<|think|>\\n' -}}{%- endif -%}
{%- if has_sys -%}{%- set ns.msgs = messages[1:] -%}
{%- if messages[0].content is string -%}{{- messages[0].content | trim -}}{%- else -%}{%- for p in messages[0].content -%}{{- p.text | trim + ' ' -}}{%- endfor -%}{%- endif -%}
{%- endif -%}
{%- for t in tools or [] -%}{{- declare(t.function) -}}{%- endfor -%}{{- '<turn|>\\n' -}}{%- endif -%}
"""
T_GEMMA4 = _GEMMA4_VALUES + """{%- for m in ns.msgs -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in ns.msgs -%}{%- if m.role != 'tool' -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}{%- set ns.kind = '' -%}
{%- if not (role == 'model' and ns.prev == 'assistant') -%}{{- '<|turn>' + role + '\\n' -}}{%- endif -%}
{%- set thought = m.reasoning or m.reasoning_content -%}
{%- if thought and (loop.index0 > ns.last or (preserve_thinking and m.tool_calls)) -%}{{- '<|channel>thought\\n' + thought + '\\n<channel|>' -}}{%- endif -%}
{%- set st = namespace(answered=false, stop=false, next='', name='') -%}
{%- for c in m.tool_calls or [] -%}{%- set a = c.function.arguments -%}
{%- if a is not mapping and a is not none -%}{{- raise_exception('arguments must be an object, not a string') -}}{%- endif -%}
{{- '<|tool_call>call:' + c.function.name -}}{{- val(a or {}) -}}{{- '<tool_call|>' -}}{%- set ns.kind = 'call' -%}
{%- endfor -%}
{%- for r in m.tool_responses or [] -%}{{- answer(r.name | default('unknown', true), r.response) -}}{%- set st.answered = true -%}{%- endfor -%}
{%- if m.tool_calls and not m.tool_responses -%}
{%- for r in ns.msgs[loop.index0 + 1:] -%}
{%- if r.role != 'tool' -%}{%- set st.stop = true -%}{%- endif -%}
{%- if not st.stop -%}{%- set st.name = r.name or 'unknown' -%}
{%- for c in m.tool_calls -%}{%- if c.id == r.tool_call_id -%}{%- set st.name = c.function.name -%}{%- endif -%}{%- endfor -%}
{%- if r.content is sequence and r.content is not string and r.content is not mapping -%}
{{- answer(st.name, r.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('')) -}}
{%- for p in r.content -%}{{- '<|image|>' if p.type in ('image', 'image_url') else '' -}}{%- endfor -%}
{%- else -%}{{- answer(st.name, r.content) -}}{%- endif -%}
{%- set st.answered = true -%}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- if st.answered -%}{%- set ns.kind = 'response' -%}{%- endif -%}
{%- set text = body(m, role) -%}{{- text -}}
{%- for n in ns.msgs[loop.index0 + 1:] -%}{%- if n.role != 'tool' and not st.next -%}{%- set st.next = n.role -%}{%- endif -%}{%- endfor -%}
{%- if ns.kind == 'call' -%}{{- '<|tool_response>' -}}
{%- elif role == 'model' and st.next == 'assistant' -%}
{%- elif not (st.answered and not (text | trim) and not st.next) -%}{{- '<turn|>\\n' -}}{%- endif -%}
{%- set ns.prev = m.role -%}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if not ns.kind -%}{{- '<|turn>model\\n' -}}{%- if not think -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- elif ns.kind == 'response' and think -%}{{- '<|channel>thought\\n' -}}{%- endif -%}
{%- endif -%}"""
# launch form (April 2026): knows no role "tool" and no reasoning, takes arguments as a raw string, writes None, leaves a
# parameter named "description" or "type" out of the declaration (its stray commas there are not imitated)
T_GEMMA4_LAUNCH = _GEMMA4_VALUES.replace("{%- if v is none -%}null\n{%- elif", "{%- if").replace("<|think|>\\n", "<|think|>").replace("not bare or k", "k") + """{%- for m in ns.msgs -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}{%- set ns.kind = '' -%}{{- '<|turn>' + role + '\\n' -}}
{%- for c in m.tool_calls or [] -%}{%- set a = c.function.arguments -%}{{- '<|tool_call>call:' + c.function.name -}}{{- '{' + a + '}' if a is string else val(a or {}) -}}{{- '<tool_call|>' -}}{%- set ns.kind = 'call' -%}{%- endfor -%}
{%- for r in m.tool_responses or [] -%}{{- answer(r.name | default('unknown'), r.response) -}}{%- set ns.kind = 'response' -%}{%- endfor -%}
{{- body(m, role) -}}
{%- if not (m.tool_responses and not m.content) -%}{{- '<turn|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{%- if ns.kind != 'response' -%}{{- '<|turn>model\\n' -}}{%- endif -%}{%- if not think -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}{%- endif -%}"""

# the last user message that isn't a tool result in disguise: thinking before it is dropped
_LAST_QUERY = """{%- set ns = namespace(last=messages | length - 1, seek=true) -%}
{%- for m in messages[::-1] -%}{%- if ns.seek and m.role == 'user' and not (@TEXT@.startswith('<tool_response>') and @TEXT@.endswith('</tool_response>')) -%}
{%- set ns.seek = false -%}{%- set ns.last = messages | length - 1 - loop.index0 -%}{%- endif -%}{%- endfor -%}
"""
_TOOL_RESULT = """{%- elif m.role == 'tool' -%}
{%- if @OPEN@ -%}{{- '<|im_start|>user' -}}{%- endif -%}{{- '\\n<tool_response>\\n' -}}{{- @TEXT@ -}}{{- '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
"""
T_QWEN3 = """{%- if tools -%}{{- '<|im_start|>system\\n' -}}{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
{{- '# Tools\\n\\nFunctions that may be called, as signatures in <tools></tools> tags:\\n<tools>' -}}{%- for t in tools -%}{{- '\\n' -}}{{- t | tojson -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nA call is a JSON object in tags of its own:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}{%- endif -%}
""" + _LAST_QUERY.replace("@TEXT@", "m.content") + """{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}
{%- set o = namespace(text=m.content, thought='') -%}
{%- if m.reasoning_content is defined and m.reasoning_content is not none -%}{%- set o.thought = m.reasoning_content -%}
{%- elif '</think>' in m.content -%}
{%- set o.text = m.content.split('</think>')[-1].lstrip('\\n') -%}{%- set o.thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{%- if loop.index0 > ns.last and (loop.last or o.thought) -%}{{- '<|im_start|>assistant\\n<think>\\n' + o.thought.strip('\\n') + '\\n</think>\\n\\n' + o.text.lstrip('\\n') -}}{%- else -%}{{- '<|im_start|>assistant\\n' + o.text -}}{%- endif -%}
{%- for tool_call in m.tool_calls or [] -%}
{%- if o.text or not loop.first -%}{{- '\\n' -}}{%- endif -%}{%- if tool_call.function -%}{%- set tool_call = tool_call.function -%}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' -}}{{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}{{- '<|im_end|>\\n' -}}
""" + _TOOL_RESULT.replace("@OPEN@", "loop.first or messages[loop.index0 - 1].role != 'tool'").replace("@TEXT@", "m.content") + """{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"""

_XML_HOW = "A call, with nothing after it, is written like this:\\n\\n<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n</function>\\n</tool_call>"
_QWEN_XML = """{%- macro text_of(c) -%}
{%- if c is string -%}{{- c -}}
{%- elif c is iterable and c is not mapping -%}
{%- for p in c -%}{%- if 'image' in p or 'image_url' in p or p.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- elif 'text' in p -%}{{- p.text -}}{%- else -%}{{- raise_exception('Unknown kind of content part.') -}}{%- endif -%}{%- endfor -%}
{%- elif c is not none and c is defined -%}{{- raise_exception('Unknown kind of content.') -}}{%- endif -%}
{%- endmacro -%}
{%- if not messages -%}{{- raise_exception('No messages.') -}}{%- endif -%}
{%- set effort = namespace(text='') -%}@EFFORT@
{%- set sys = text_of(messages[0].content) | trim if messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + effort.text + '# Tools\\n\\nThese functions may be called:\\n\\n<tools>' -}}{%- for t in tools -%}{{- '\\n' -}}{{- t | tojson -}}{%- endfor -%}
{{- '\\n</tools>\\n\\n@HOW@' + ('\\n\\n' + sys if sys else '') + '<|im_end|>\\n' -}}
{%- elif @SYS@ -%}{{- '<|im_start|>system\\n' + (effort.text + sys if sys else effort.text | trim) + '<|im_end|>\\n' -}}{%- endif -%}
""".replace("@HOW@", _XML_HOW) + _LAST_QUERY.replace("@TEXT@", "(text_of(m.content) | trim)") + """{%- if ns.seek -%}{{- raise_exception('No user query found in messages.') -}}{%- endif -%}
{%- for m in messages -%}
{%- set o = namespace(text=text_of(m.content) | trim, thought='') -%}
{%- if m.role == 'system' -%}{%- if not loop.first -%}{{- raise_exception('System message must be at the beginning.') -}}{%- endif -%}
{%- elif m.role == 'user' -%}{{- '<|im_start|>user\\n' + o.text + '<|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}
{%- if m.reasoning_content is string -%}{%- set o.thought = m.reasoning_content -%}@INLINE@{%- endif -%}
{{- '<|im_start|>assistant\\n' -}}{%- if @KEEP@ -%}{{- '<think>\\n' + o.thought | trim + '\\n</think>\\n\\n' -}}{%- endif -%}{{- o.text -}}
{%- for tool_call in m.tool_calls or [] -%}
{%- if tool_call.function is defined -%}{%- set tool_call = tool_call.function -%}{%- endif -%}
{{- ('\\n\\n' if o.text else '') if loop.first else '\\n' -}}{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' -}}
{%- if tool_call.arguments is defined@BLANK@ -%}{%- for k, v in tool_call.arguments | items -%}{{- '<parameter=' + k + '>\\n' -}}{{- @VALUE@ -}}{{- '\\n</parameter>\\n' -}}{%- endfor -%}{%- endif -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}{{- '<|im_end|>\\n' -}}
""" + _TOOL_RESULT.replace("@OPEN@", "not loop.first and messages[loop.index0 - 1].role != 'tool'").replace("@TEXT@", "o.text") + """{%- else -%}{{- raise_exception('Unexpected message role.') -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '<think>\\n' -}}{%- endif -%}"""
_INLINE = """{%- elif '</think>' in o.text -%}{%- set o.thought = o.text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}{%- set o.text = o.text.split('</think>')[-1].lstrip('\\n') -%}"""
_EFFORT = """{%- if enable_thinking is undefined or enable_thinking is true -%}{%- set level = reasoning_effort | default('xhigh') -%}
{%- if level not in ('xhigh', 'medium', 'low') -%}{{- raise_exception('Unexpected reasoning effort ' ~ level) -}}{%- endif -%}
{%- set effort.text = {'xhigh': 'Effort: xhigh. Think it through.\\n\\n', 'low': 'Effort: low. Think briefly.\\n\\n', 'medium': ''}[level] -%}{%- endif -%}"""


def _qwen_xml(keep, value, inline=_INLINE, effort="", sys="messages[0].role == 'system'", blank=""):
    t = _QWEN_XML
    for k, v in dict(KEEP=keep, VALUE=value, INLINE=inline, EFFORT=effort, SYS=sys, BLANK=blank).items():
        t = t.replace(f"@{k}@", v)
    return t


_AFTER = "loop.index0 > ns.last"
# 3.5 writes true, false and null of an argument as Python does; 3.6 and 3.8 write JSON
T_QWEN35 = _qwen_xml(_AFTER, "v | tojson if v is mapping or (v is sequence and v is not string) else v | string")
T_QWEN36 = _qwen_xml(f"(preserve_thinking is defined and preserve_thinking is true) or {_AFTER}", "v if v is string else v | tojson")
T_QWEN38 = _qwen_xml(f"preserve_thinking is undefined or preserve_thinking is true or {_AFTER}", "v if v is string else v | tojson", "", _EFFORT, "sys or effort.text", " and tool_call.arguments != ''")
# Qwen3-Coder and Qwen3-Coder-Next: XML too, but no thinking, functions declared in XML, other newlines
T_QWEN_CODER = """{%- macro more(d, but) -%}{%- for k in d if k not in but -%}{{- '\\n<' ~ k ~ '>' ~ (d[k] | tojson if d[k] is mapping or (d[k] is sequence and d[k] is not string) else d[k] | string) ~ '</' ~ k ~ '>' -}}{%- endfor -%}{%- endmacro -%}
{%- set ns = namespace(sys='', msgs=messages, open=false) -%}
{%- if messages[0].role == 'system' -%}{%- set ns.sys = messages[0].content -%}{%- set ns.open = true -%}{%- set ns.msgs = messages[1:] -%}
{%- elif tools -%}{%- set ns.sys = 'You are an assistant that works with a computer.' -%}{%- set ns.open = true -%}{%- endif -%}
{%- if ns.open -%}{{- '<|im_start|>system\\n' + ns.sys -}}
{%- if tools -%}{{- '\\n\\n# Tools\\n\\nThese functions may be called:\\n\\n<tools>' -}}
{%- for t in tools -%}{%- set f = t.function if t.function is defined else t -%}{%- set d = f.parameters if f.parameters is mapping else {} -%}
{{- '\\n<function>\\n<name>' ~ f.name ~ '</name>' -}}{%- if f.description is defined -%}{{- '\\n<description>' ~ f.description | trim ~ '</description>' -}}{%- endif -%}{{- '\\n<parameters>' -}}
{%- for k, s in (d.properties if d.properties is mapping else {}) | items -%}{{- '\\n<parameter>\\n<name>' ~ k ~ '</name>' -}}
{%- if s.type is defined -%}{{- '\\n<type>' ~ s.type | string ~ '</type>' -}}{%- endif -%}{%- if s.description is defined -%}{{- '\\n<description>' ~ s.description | trim ~ '</description>' -}}{%- endif -%}
{{- more(s, ['name', 'type', 'description']) -}}{{- '\\n</parameter>' -}}{%- endfor -%}
{{- more(d, ['type', 'properties']) -}}{{- '\\n</parameters>' -}}{{- more(f, ['type', 'name', 'description', 'parameters']) -}}{{- '\\n</function>' -}}
{%- endfor -%}{{- '\\n</tools>\\n\\n@HOW@' -}}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- for m in ns.msgs -%}
{%- if m.role == 'assistant' and m.tool_calls -%}{{- '<|im_start|>assistant' -}}
{%- if m.content is string and m.content | trim -%}{{- '\\n' + m.content | trim + '\\n' -}}{%- endif -%}
{%- for tool_call in m.tool_calls -%}{%- if tool_call.function is defined -%}{%- set tool_call = tool_call.function -%}{%- endif -%}
{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' -}}
{%- if tool_call.arguments is defined -%}{%- for k, v in tool_call.arguments | items -%}{{- '<parameter=' + k + '>\\n' -}}{{- v | tojson if v is mapping or (v is sequence and v is not string) else v | string -}}{{- '\\n</parameter>\\n' -}}{%- endfor -%}{%- endif -%}
{{- '</function>\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}
{%- elif m.role == 'tool' -%}
{%- if loop.previtem and loop.previtem.role != 'tool' -%}{{- '<|im_start|>user\\n' -}}{%- endif -%}{{- '<tool_response>\\n' -}}{{- m.content -}}{{- '\\n</tool_response>\\n' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}""".replace("@HOW@", _XML_HOW)
TEMPLATE = dict(llama=T_LLAMA, gemma3=T_GEMMA3, gemma4=T_GEMMA4, qwen3=T_QWEN3, qwen3_moe=T_QWEN3, qwen3_5=T_QWEN35, qwen3_next=T_QWEN_CODER)
# other forms that real checkpoints of these families carry: build(..., template="qwen3_8")
EXTRA = dict(gemma4_small=T_GEMMA4.replace("{%- if not think -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}", ""), gemma4_launch=T_GEMMA4_LAUNCH, qwen3_6=T_QWEN36, qwen3_8=T_QWEN38, qwen_coder=T_QWEN_CODER)

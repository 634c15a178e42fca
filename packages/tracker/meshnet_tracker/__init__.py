"""The tracker: who is there, which routes are possible, what was learnt of them, and every chat's way through.

Start with ``proxy.py``, the path of a chat. What decides is plain code, told the time and handed its dice:
``fleet``, ``candidates``, ``routing_stats``, ``router``. What translates: ``openai_schema``,
``openai_errors``, ``sse``, ``routing_table``. What acts: ``proxy``, ``chat_reply``, ``head_client``,
``http_api``, ``events``. ``server`` joins them.
"""

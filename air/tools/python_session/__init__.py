"""The tool `code_interpreter`: a Python session in the episode's box (sandbox). Its variables persist from
call to call."""

from __future__ import annotations

from air.tools.python_session.interpreter import CodeInterpreterSettings, Interpreter

__all__ = ["CodeInterpreterSettings", "Interpreter"]

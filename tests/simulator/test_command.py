from __future__ import annotations

from clonos.simulator import command
from clonos.simulator.runs.seeds import simulate


def test_an_interrupted_run_says_how_far_it_came(monkeypatch, capsys):
    def until_the_third(seed, kind):
        if seed == 2:
            raise KeyboardInterrupt
        return simulate(seed, kind)

    monkeypatch.setattr(command, "simulate", until_the_third)
    assert command.main(100) == 130
    assert "2 seeds in" in capsys.readouterr().out

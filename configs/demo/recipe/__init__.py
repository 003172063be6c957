"""The demo bundle: a small music model of ACE-Step's architecture, its corpus, training, codec and evaluation."""

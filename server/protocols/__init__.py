"""Other people's clients: their protocols as thin translations onto generations and live sessions."""

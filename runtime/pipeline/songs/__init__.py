"""Plans with sections: their pages in tokens, codes of one section after the other, hints on the way."""

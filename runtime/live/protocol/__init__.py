"""The live protocol: messages of clients and of servers, binary frames; and the actions of a session."""

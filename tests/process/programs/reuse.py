"""Listens on 127.0.0.1 and port argv[1] with SO_REUSEPORT, as several API servers of one vLLM do."""

import socket
import sys
import time

with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    time.sleep(1000)

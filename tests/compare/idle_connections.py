"""What idle connections cost a server: `python idle_connections.py HOST:PORT PID [COUNT]`.

Opens COUNT connections (10000 unless said otherwise) to the server that runs as process PID: first ones that say nothing, then as
many that have asked once and keep their connection. Prints by how much the server's memory (VmRSS) has grown since the beginning.
The server is to let them be for long enough: `backplane serve MODEL --idle-time 10m`.
"""

import resource
import socket
import sys

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def answered(connection):
    read = b""
    while b"}" not in read:
        more = connection.recv(4096)
        assert more, "the server has closed"
        read += more
    assert read.startswith(b"HTTP/1.1 200"), read


def main():
    address, pid, *count = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    count = int(count[0]) if count else 10_000
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert most == resource.RLIM_INFINITY or most > count + 100, f"this process may open {most} files"

    before = memory(pid)

    def grown(what, say):
        connections = []
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=60)
            connections.append(connection)
            if say:
                connection.sendall(REQUEST)
                answered(connection)
        # The last one is answered after all others were taken.
        if not say:
            connections[-1].sendall(REQUEST)
            answered(connections[-1])
        growth = memory(pid) - before
        print(f"{count} connections {what}: {growth:.1f} MiB, {growth * 1024 / count:.1f} KiB each")
        for connection in connections:
            connection.close()

    grown("that say nothing", False)
    grown("that have asked once", True)


main()

"""tfexport with the waits of connections cut to a second or two, for tests of them."""

from tfexport.cli.main import main
from tfexport.serve import server

server.HEAD_SECONDS, server.STALL_SECONDS = 1, 2

if __name__ == "__main__":
    main()

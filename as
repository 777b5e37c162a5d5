user = reader
password = wrong

-- expect: os.lua:2: 'os' is not available in a spec: a spec reads and writes no files
os.execute("ls")
return attention {}

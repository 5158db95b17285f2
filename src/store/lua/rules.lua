-- Keeps the text of a rule set, so that anyone can reap.  KEYS: rules.  ARGV: its digest, the text
go_though_full_hash(KEYS[1])
return call('HSET', KEYS[1], ARGV[1], ARGV[2])

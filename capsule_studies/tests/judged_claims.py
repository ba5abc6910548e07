"""The claims of docs/claims.yaml and their verdicts, computed once for all tests."""

from capsule_studies.claims.read import read
from capsule_studies.claims.verdicts import judged

CLAIMS = read()
JUDGED = judged(CLAIMS)

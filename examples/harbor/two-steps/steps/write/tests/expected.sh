EXPECTED="Jupiter
Saturn
Uranus
Neptune"

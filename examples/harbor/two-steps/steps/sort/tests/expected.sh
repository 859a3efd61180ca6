EXPECTED="Jupiter
Neptune
Saturn
Uranus"
